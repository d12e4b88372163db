"""config.pbtxt: parse, complete, normalise, validate, JSON form. Imports core and proto; `model_config` is the door."""
