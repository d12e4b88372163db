"""The text format of config.pbtxt: what is accepted, what is refused, and where the error points."""

from __future__ import annotations

import sys

import pytest

from pytriton_lite.config.errors import PollError
from pytriton_lite.config.text import parse_model_config, read_config_text
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
    ("value", "number"),
    [
        ("1", 1.0),
        (".5", 0.5),
        ("0.5f", 0.5),
        ("5e-1", 0.5),
        ("1F", 1.0),
        ("0f", 0.0),
        ("0e3", 0.0),
        ("inf", float("inf")),
    ],
)
def test_floats_in_all_spellings(value: str, number: float) -> None:
    message = parse(f"sequence_batching {{ direct {{ minimum_slot_utilization: {value} }} }}")
    assert message.sequence_batching.direct.minimum_slot_utilization == number


NO_FIELD = 'Message type "inference.{}" has no field named "{}".'
TWICE = 'Non-repeated field "{}" is specified multiple times.'
NO_ESCAPE = "Invalid escape sequence in string literal."
NEEDS_SPACE = "Need space between number and identifier."
OPEN = 'Expected identifier, got: the end of the file; no "}" closes this'


@pytest.mark.parametrize(
    ("text", "where", "says"),
    [
        pytest.param(
            "input {\n  data_type: type_fp32\n}",
            "2:14",
            'Unknown enumeration value of "type_fp32" for field "data_type".',
            id="row 5",
        ),
        pytest.param(
            'input { data_type: "TYPE_FP32" }', "1:20", 'Expected integer or identifier, got: "TYPE_FP32"', id="row 6"
        ),
        pytest.param("foo: 1", "1:1", NO_FIELD.format("ModelConfig", "foo"), id="row 7"),
        pytest.param("max_batch_size: 2\nmax_batch_size: 3", "2:1", TWICE.format("max_batch_size"), id="row 8"),
        pytest.param("dynamic_batching { }\ndynamic_batching { }", "2:1", TWICE.format("dynamic_batching"), id="row 9"),
        pytest.param(
            "dynamic_batching { }\nsequence_batching { }",
            "2:1",
            'Field "sequence_batching" is specified along with field "dynamic_batching", another member of oneof '
            '"scheduling_choice".',
            id="row 10",
        ),
        pytest.param("input { dims: [ 4, ] }", "1:20", "Expected integer, got: ]", id="row 11, numbers"),
        pytest.param("input [ { dims: 4 }, ]", "1:22", 'Expected "{", found "]".', id="row 11, messages"),
        pytest.param(
            "model_transaction_policy { decoupled: TRUE }",
            "1:39",
            'Invalid value for boolean field "decoupled". Value: "TRUE".',
            id="row 15",
        ),
        pytest.param(
            'parameters: { python_lib: "/x" }',
            "1:15",
            NO_FIELD.format("ModelConfig.ParametersEntry", "python_lib")
            + " A model's code is <version>/model.py, or the "
            "file there that default_model_filename names.",
            id="row 18; model_api.md, section 9",
        ),
        pytest.param(
            'parameters { key: "a" value { string_value: 1 } }', "1:45", "Expected string, got: 1", id="row 19"
        ),
        pytest.param("max_batch_size: 4.0", "1:17", "Expected integer, got: 4.0", id="row 20, a float"),
        pytest.param("max_batch_size: 3000000000", "1:17", "Integer out of range (3000000000)", id="row 20, too large"),
        pytest.param('\ufeffname: "m"', "1:1", "Interpreting non ascii codepoint 239.", id="row 22"),
        pytest.param('// hello\nname: "m"', "1:1", "Expected identifier, got: /", id="row 23"),
        pytest.param(
            "sequence_batching { generative_sequence: true }",
            "1:21",
            NO_FIELD.format("ModelSequenceBatching", "generative_sequence"),
            id="row 26",
        ),
        pytest.param("/* hello */", "1:1", "Expected identifier, got: /", id="a comment of C"),
        pytest.param(
            "input { dims: [ 4 instance_group ] }", "1:19", 'Expected ",", found "instance_group".', id="missing comma"
        ),
        pytest.param(
            "[foo.bar]: 3",
            "1:1",
            'Extension "foo.bar" is not defined or is not an extension of "inference.ModelConfig".',
            id="extension",
        ),
        pytest.param('input {\n name: "x"\n', "1:7", OPEN, id="unterminated message"),
        pytest.param("input {\n name:\n", "1:7", OPEN, id="unterminated field"),
        pytest.param(
            "input {\n foo: 1\n", "2:2", NO_FIELD.format("ModelInput", "foo"), id="error in a message that is open"
        ),
        pytest.param('name: "m', "1:7", "Unexpected end of string.", id="unterminated string"),
        pytest.param('name: "m\n', "1:7", "String literals cannot cross line boundaries.", id="string over lines"),
        pytest.param("[ ]", "1:3", "Expected identifier, got: ]", id="extension without a name"),
        pytest.param(
            "max_batch_size: x data_type: 0x1G", "1:17", "Expected integer, got: x", id="error before a bad token"
        ),
        pytest.param(
            "input { dims: [ 0x1G", "1:20", "Need space between number and identifier.", id="bad token inside"
        ),
        pytest.param(r'name: "a\q"', "1:9", NO_ESCAPE, id="escape"),
        pytest.param(r'name: "a\xg"', "1:9", "Expected hex digits for escape sequence.", id="hexadecimal escape"),
        pytest.param(r'name: "\ud83d"', "1:8", NO_ESCAPE, id="half a surrogate pair"),
        pytest.param(r'name: "\U00110000"', "1:8", NO_ESCAPE, id="beyond Unicode"),
        pytest.param(r'name: "\xff"', "1:7", "string literal is not valid UTF-8", id="a string that is no text"),
        pytest.param("max_batch_size: 1_000", "1:18", NEEDS_SPACE, id="underscore in a number"),
        pytest.param("max_batch_size: 0b10", "1:18", NEEDS_SPACE, id="binary number"),
        pytest.param('max_batch_size: 4input { name: "x" }', "1:18", NEEDS_SPACE, id="a name glued to a number"),
        pytest.param("max_batch_size: 0x", "1:18", '"0x" must be followed by hex digits.', id="no hexadecimal digits"),
        pytest.param("max_batch_size: 1e", "1:18", '"e" must be followed by exponent.', id="no exponent"),
        pytest.param(
            "max_batch_size: 1.2.3",
            "1:20",
            "Already saw decimal point or exponent; can't have another one.",
            id="two points",
        ),
        pytest.param("max_batch_size: +4", "1:17", "Expected integer, got: +", id="plus"),
        pytest.param("max_batch_size: 08", "1:17", "Numbers starting with leading zero must be in octal.", id="octal"),
        pytest.param(
            "max_batch_size: 08.5", "1:17", "Numbers starting with leading zero must be in octal.", id="8 in octal"
        ),
        pytest.param("max_batch_size: 01.5", "1:19", "Hex and octal numbers must be integers.", id="octal fraction"),
        pytest.param(
            "max_batch_size: 0x1.5", "1:20", "Hex and octal numbers must be integers.", id="hexadecimal fraction"
        ),
        pytest.param("max_batch_size: 01e5", "1:19", NEEDS_SPACE, id="octal exponent"),
        pytest.param("max_batch_size: 01f", "1:19", NEEDS_SPACE, id="octal float"),
        pytest.param("max_batch_size:\u00a04", "1:16", "Interpreting non ascii codepoint 194.", id="no-break space"),
        pytest.param(
            "max_batch_size: 4\x01", "1:18", "Invalid control characters encountered in text.", id="control character"
        ),
        pytest.param("input { data_type: 3000000000 }", "1:20", "Integer out of range (3000000000)", id="large enum"),
        pytest.param("max_batch_size: " + "9" * 5000, "1:17", f"Integer out of range ({'9' * 5000})", id="huge"),
        pytest.param(
            "version_policy { latest { num_versions: -1 } }", "1:41", "Expected integer, got: -", id="unsigned"
        ),
        pytest.param("max_batch_size 4", "1:16", 'Expected ":", found "4".', id="missing colon"),
        pytest.param("input { dims [4] }", "1:14", 'Expected ":", found "[".', id="missing colon before a list"),
        pytest.param("input { dims: 4 >", "1:17", 'Expected "}", found ">".', id="wrong bracket"),
        pytest.param("max_batch_size: 4;;", "1:19", "Expected identifier, got: ;", id="two separators"),
        pytest.param("max_batch_size: [4]", "1:17", "Expected integer, got: [", id="list for a single value"),
        pytest.param('parameters { key: "a" key: "b" }', "1:23", TWICE.format("key"), id="key given twice"),
        pytest.param("model_transaction_policy { decoupled: 2 }", "1:39", "Integer out of range (2)", id="truth of 2"),
        pytest.param(
            "sequence_batching { direct { minimum_slot_utilization: 0x1 } }",
            "1:56",
            "Expect a decimal number, got: 0x1",
            id="hexadecimal float",
        ),
        pytest.param(
            'sequence_batching { direct { minimum_slot_utilization: "a" } }',
            "1:56",
            'Expected double, got: "a"',
            id="a string for a float",
        ),
    ],
)
def test_error_names_file_line_column_and_what_came(text: str, where: str, says: str) -> None:
    """The sentences are those of Triton 2.51, which names the place behind the token; here it is the token's own."""
    assert refusal(text) == f"m/config.pbtxt:{where}: {says}"


def test_every_error_of_a_file_is_found() -> None:
    """One that is inside a message ends neither that nor the file."""
    found = read_config_text(
        """
        foo { a: [ 1, { b: 2 } ] }
        input { name: "x" datatype: TYPE_FP32 dims: [ 4, ] format: } output { name: 5 }
        } max_batch_size: TRUE, backend: "a" "b" parameters { key: "p" value { string_value: 1 } }
        """,
        source="m",
    )
    assert [f"{error.line}:{error.column} {error.problem.split()[0]}" for error in found.errors] == [
        "2:9 Message",
        "3:27 Message",
        "3:58 Expected",
        "3:68 Expected",
        "3:85 Expected",
        "4:9 Expected",
        "4:27 Expected",
        "4:94 Expected",
    ]
    assert (found.message.input[0].name, found.message.backend) == ("x", "ab")


def test_every_field_has_its_place() -> None:
    found = read_config_text(
        """name: "m"
input [ { name: "a" dims: [ 4,
   5 ] }, { } ]
input { dims: 1
  dims: 2 }
parameters { key: "A" value { string_value: "1" } }
parameters {
  value { string_value: "2" } key: "A" }
dynamic_batching { priority_queue_policy [ { key: 3, value: { max_queue_size: 1 } } ] }
""",
        source="m",
    )
    assert found.places == {
        "name": (1, 1),
        "input": (2, 1),
        "input[0]": (2, 9),
        "input[0].name": (2, 11),
        "input[0].dims": (2, 21),
        "input[0].dims[0]": (2, 29),
        "input[0].dims[1]": (3, 4),
        "input[1]": (3, 11),
        "input[2]": (4, 1),
        "input[2].dims": (4, 9),
        "input[2].dims[0]": (4, 9),
        "input[2].dims[1]": (5, 3),
        "parameters": (6, 1),
        'parameters["A"]': (7, 1),
        'parameters["A"].string_value': (8, 11),
        "dynamic_batching": (9, 1),
        "dynamic_batching.priority_queue_policy": (9, 20),
        'dynamic_batching.priority_queue_policy["3"]': (9, 44),
        'dynamic_batching.priority_queue_policy["3"].max_queue_size': (9, 63),
    }


def test_bytes_that_are_no_utf8_are_refused_in_a_string_and_ignored_in_a_comment() -> None:
    latin1 = b"# gr\xf6\xdfer\n".decode("utf-8", "surrogateescape")
    assert parse(latin1 + 'name: "m"').name == "m"
    assert "not valid UTF-8" in refusal('name: "' + latin1.strip("# \n") + '"')


def test_fields_newer_than_triton_2_51_are_known() -> None:
    message = parse('model_metrics { metric_control { metric_identifier { family: "f" } } } ' + INPUT)
    assert message.model_metrics.metric_control[0].metric_identifier.family == "f"


def test_twice_as_many_parameters_are_twice_the_work() -> None:
    def calls(entries: int) -> int:
        text = "".join(f'parameters {{ key: "k{at}" value {{ string_value: "v" }} }}\n' for at in range(entries))
        count = 0

        def on_event(frame: object, event: str, called: object) -> None:
            nonlocal count
            count += event in ("call", "c_call")

        before = sys.getprofile()
        sys.setprofile(on_event)
        try:
            read_config_text(text, source="m/config.pbtxt")
        finally:
            sys.setprofile(before)
        return count

    assert calls(2000) < 3 * calls(1000)
