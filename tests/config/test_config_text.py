"""The text format of config.pbtxt: what is accepted, what is refused, and where the error points."""

from __future__ import annotations

import pytest

from pytriton_lite.config.errors import PollError
from pytriton_lite.config.text import parse_model_config
from pytriton_lite.proto import model_config_pb


def parse(text: str) -> model_config_pb.ModelConfig:
    return parse_model_config(text, source="m/config.pbtxt")


def refusal(text: str) -> str:
    with pytest.raises(PollError) as caught:
        parse(text)
    return caught.value.detail


def same(text: str, canonical: str) -> bool:
    return parse(text) == parse(canonical)


INPUT = 'input { name: "x" data_type: TYPE_FP32 dims: 4 }'


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        pytest.param('# one\nname: "m" # two\n  # three', 'name: "m"', id="row 1"),
        pytest.param("max_batch_size: 2 # größer", "max_batch_size: 2", id="a comment may hold anything"),
        pytest.param(
            'input { name: "a"; dims: 1; }; output < name: "b" >;',
            'input { name: "a" dims: 1 } output { name: "b" }',
            id="row 2",
        ),
        pytest.param(
            "input < name: 'a' > output: < name: 'b' >", 'input { name: "a" } output { name: "b" }', id="angle"
        ),
        pytest.param("backend: 'py' \"thon\", max_batch_size: 0x4", 'backend: "python" max_batch_size: 4', id="row 3"),
        pytest.param("backend: 'py' # half\n\"thon\"", 'backend: "python"', id="literals join across lines"),
        pytest.param("input { data_type: 11 }", "input { data_type: TYPE_FP32 }", id="row 4"),
        pytest.param("input { data_type: 013 }", "input { data_type: TYPE_FP32 }", id="enum in octal"),
        pytest.param('input [{ name: "x", dims: [ 4 ], }]', 'input { name: "x" dims: 4 }', id="row 12"),
        pytest.param("input { dims: 2 dims: 2 dims: [3, 4] }", "input { dims: [2, 2, 3, 4] }", id="row 13"),
        pytest.param(
            'input { name: "a" } input [{ name: "b" }] input: [{ name: "c" }, { name: "d" }]',
            'input [{ name: "a" }, { name: "b" }, { name: "c" }, { name: "d" }]',
            id="all forms of a list, in file order",
        ),
        pytest.param('name: "m"\r\nmax_batch_size: 2\r\n', 'name: "m" max_batch_size: 2', id="row 21"),
        pytest.param("", "max_batch_size: 0", id="row 24, an empty file"),
        pytest.param("batch_input [ ] input { dims: [ ] }", "input { }", id="row 25"),
        pytest.param("max_batch_size: 010", "max_batch_size: 8", id="octal"),
        pytest.param("input { dims: - 1 }", "input { dims: -1 }", id="blank after a minus"),
        pytest.param(
            "max_batch_size: 0 max_batch_size: 4", "max_batch_size: 4", id="a default given twice is not seen"
        ),
        pytest.param("version_policy: { all: { } }", "version_policy { all { } }", id="colon before a message"),
    ],
)
def test_notations_mean_the_same(text: str, canonical: str) -> None:
    assert same(text, canonical)


@pytest.mark.parametrize("value", ["true", "True", "t", "1"])
def test_true_has_four_spellings(value: str) -> None:
    """model_config.md row 14."""
    assert parse(f"model_transaction_policy {{ decoupled: {value} }}").model_transaction_policy.decoupled


@pytest.mark.parametrize("value", ["false", "False", "f", "0"])
def test_false_has_four_spellings(value: str) -> None:
    assert not parse(f"model_transaction_policy {{ decoupled: {value} }}").model_transaction_policy.decoupled


def test_parameters_in_three_notations_are_all_there() -> None:
    """model_config.md rows 16 and 17: the last value of a key wins; what is missing is empty."""
    message = parse(
        """
        parameters { key: "A" value { string_value: "1" } }
        parameters: { key: "B" value: { string_value: "2" } }
        parameters [ { key: "C" value { string_value: "3" } }, { key: "A" value { string_value: "4" } }, { key: "D" }, { } ]
        """
    )
    found = {key: message.parameters[key].string_value for key in sorted(message.parameters)}
    assert found == {"": "", "A": "4", "B": "2", "C": "3", "D": ""}


@pytest.mark.parametrize(
    ("literal", "value"),
    [
        (r'"\n\t\r\\\'\"\a\?"', "\n\t\r\\'\"\a?"),
        (r'"\101\x41\X41\0418"', "AAA!8"),
        (r'"\u00e9\U0001F600\ud83d\ude00"', "é😀😀"),
        (r"'it is \"this\"'", 'it is "this"'),
        ('"größer # no comment"', "größer # no comment"),
        (r'"\303\266"', "ö"),
    ],
)
def test_escapes_are_those_of_c(literal: str, value: str) -> None:
    assert parse(f"name: {literal}").name == value


@pytest.mark.parametrize(
    ("value", "number"), [("1", 1.0), (".5", 0.5), ("0.5f", 0.5), ("5e-1", 0.5), ("1F", 1.0), ("inf", float("inf"))]
)
def test_floats_in_all_spellings(value: str, number: float) -> None:
    message = parse(f"sequence_batching {{ direct {{ minimum_slot_utilization: {value} }} }}")
    assert message.sequence_batching.direct.minimum_slot_utilization == number


@pytest.mark.parametrize(
    ("text", "where", "says"),
    [
        pytest.param("input {\n  data_type: type_fp32\n}", "2:14", "type_fp32", id="row 5"),
        pytest.param('input { data_type: "TYPE_FP32" }', "1:20", '"TYPE_FP32"', id="row 6"),
        pytest.param("foo: 1", "1:1", 'Message type "inference.ModelConfig" has no field named "foo"', id="row 7"),
        pytest.param("max_batch_size: 2\nmax_batch_size: 3", "2:17", '"max_batch_size"', id="row 8"),
        pytest.param("dynamic_batching { }\ndynamic_batching { }", "2:18", '"dynamic_batching"', id="row 9"),
        pytest.param(
            "dynamic_batching { }\nsequence_batching { }",
            "2:1",
            '"sequence_batching" is specified along with field "dynamic_batching"',
            id="row 10",
        ),
        pytest.param("input { dims: [ 4, ] }", "1:20", "]", id="row 11, numbers"),
        pytest.param("input [ { dims: 4 }, ]", "1:22", "got ]", id="row 11, messages"),
        pytest.param("model_transaction_policy { decoupled: TRUE }", "1:39", "TRUE", id="row 15"),
        pytest.param('parameters: { python_lib: "/x" }', "1:15", '"python_lib"', id="row 18"),
        pytest.param(
            'parameters: { python_lib: "/x" }', "1:15", "default_model_filename", id="model_api.md, section 9"
        ),
        pytest.param('parameters { key: "a" value { string_value: 1 } }', "1:45", "1", id="row 19"),
        pytest.param("max_batch_size: 4.0", "1:17", "4.0", id="row 20, a float"),
        pytest.param("max_batch_size: 3000000000", "1:17", "3000000000", id="row 20, out of range"),
        pytest.param('\ufeffname: "m"', "1:1", "Interpreting non ascii codepoint 239", id="row 22"),
        pytest.param('// hello\nname: "m"', "1:1", "got /", id="row 23"),
        pytest.param("sequence_batching { generative_sequence: true }", "1:21", '"generative_sequence"', id="row 26"),
        pytest.param("/* hello */", "1:1", "got /", id="a comment of C"),
        pytest.param("input { dims: [ 4 instance_group ] }", "1:19", "instance_group", id="missing comma"),
        pytest.param("[foo.bar]: 3", "1:6", "does not have extensions", id="extension"),
        pytest.param(
            'input {\n name: "x"\n', "2:8", 'Expected "}", got the end of the file', id="unterminated message"
        ),
        pytest.param("input {\n name:\n", "3:1", "got the end of the file", id="unterminated field"),
        pytest.param('name: "m', "1:7", "no closing quote", id="unterminated string"),
        pytest.param(r'name: "a\q"', "1:9", r"Invalid escape sequence in string literal: \q", id="escape"),
        pytest.param(r'name: "\ud83d"', "1:8", "Invalid escape sequence", id="half a surrogate pair"),
        pytest.param(r'name: "\U00110000"', "1:8", "Invalid escape sequence", id="beyond Unicode"),
        pytest.param(r'name: "\xff"', "1:7", "not valid UTF-8", id="a string that is no text"),
        pytest.param("max_batch_size: 1_000", "1:18", '"_000"', id="underscore in a number"),
        pytest.param("max_batch_size: 0b10", "1:18", "need space between number and identifier", id="binary number"),
        pytest.param('max_batch_size: 4input { name: "x" }', "1:18", "need space", id="a name glued to a number"),
        pytest.param("max_batch_size: +4", "1:17", "+", id="plus"),
        pytest.param("max_batch_size: 08", "1:17", "08", id="no octal digit"),
        pytest.param("max_batch_size:\u00a04", "1:16", "non ascii codepoint 194", id="no-break space"),
        pytest.param("max_batch_size: 4\x01", "1:18", "invalid control character 0x01", id="control character"),
        pytest.param("input { data_type: 3000000000 }", "1:20", "3000000000", id="enum out of range"),
        pytest.param("max_batch_size 4", "1:16", 'Expected ":", got 4', id="missing colon"),
        pytest.param("input { dims [4] }", "1:14", 'Expected ":", got [', id="missing colon before a list"),
        pytest.param("input { dims: 4 >", "1:17", "got >", id="wrong bracket"),
        pytest.param("max_batch_size: 4;;", "1:19", "got ;", id="two separators"),
        pytest.param("max_batch_size: [4]", "1:17", "[", id="list for a single value"),
        pytest.param('parameters { key: "a" key: "b" }', "1:28", '"key"', id="key given twice"),
        pytest.param(
            "sequence_batching { direct { minimum_slot_utilization: 0x1 } }", "1:56", "0x1", id="hexadecimal float"
        ),
    ],
)
def test_error_names_file_line_column_and_what_came(text: str, where: str, says: str) -> None:
    detail = refusal(text)
    assert detail.startswith(f"m/config.pbtxt:{where}: ")
    assert says in detail


def test_bytes_that_are_no_utf8_are_refused_in_a_string_and_ignored_in_a_comment() -> None:
    latin1 = b"# gr\xf6\xdfer\n".decode("utf-8", "surrogateescape")
    assert parse(latin1 + 'name: "m"').name == "m"
    assert "not valid UTF-8" in refusal('name: "' + latin1.strip("# \n") + '"')


def test_fields_newer_than_triton_2_51_are_known() -> None:
    message = parse('model_metrics { metric_control { metric_identifier { family: "f" } } } ' + INPUT)
    assert message.model_metrics.metric_control[0].metric_identifier.family == "f"
