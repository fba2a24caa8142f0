"""Options of generate(): valid options are accepted, others give a one-line error before a model is loaded."""

from typing import Any

import pytest
from transformers import GenerationConfig

from heal.bench import create
from heal.bench.run.runner import Settings
from heal.engine.decoding import OPTIONS, check_options, parse_options
from heal.errors import ConfigError


@pytest.mark.parametrize("word", ["false", "FALSE", "False", "no", "No", "off", "0"])
def test_no_is_no(word: str) -> None:
    assert parse_options([f"do_sample={word}"]) == {"do_sample": False}


@pytest.mark.parametrize("word", ["true", "TRUE", "yes", "on", "1"])
def test_yes_is_yes(word: str) -> None:
    assert parse_options([f"do_sample={word}"]) == {"do_sample": True}


def test_values_have_the_type_of_their_option() -> None:
    found = parse_options(["num_beams=3", "do_sample=yes", "temperature=1", "early_stopping=never", "top_k=0"])
    assert found == {"num_beams": 3, "do_sample": True, "temperature": 1.0, "early_stopping": "never", "top_k": 0}
    assert isinstance(found["temperature"], float)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["do_sample=perhaps"], "do_sample cannot be 'perhaps': write true or false"),
        (["do_sample="], "do_sample cannot be ''"),
        (["num_beams=three"], "num_beams cannot be 'three': write a whole number"),
        (["num_beams=2.5"], "num_beams cannot be '2.5'"),
        (["num_beams=0"], "num_beams cannot be 0: it must be 1 or more and at most 256"),
        ([f"num_beams={'9' * 5000}"], "the number is too large"),
        (["do_sample=true", "temperature=-1"], "temperature cannot be -1.0: it must be more than 0"),
        (["do_sample=true", "temperature=0"], "temperature cannot be 0.0"),
        (["do_sample=true", "temperature=nan"], "temperature cannot be 'nan'"),
        (["do_sample=true", "temperature=inf"], "temperature cannot be inf"),
        (["do_sample=true", "top_p=7"], "top_p cannot be 7.0: it must be more than 0 and at most 1"),
        (["do_sample=true", "top_k=-1"], "top_k cannot be -1: it must be 0 or more"),
        (["temperature=0.5"], "temperature has no effect without sampling: give do_sample=true"),
        (["do_sample=no", "top_p=0.5"], "top_p has no effect without sampling"),
        (["length_penalty=2"], "length_penalty has no effect without beams"),
        (["max_new_tokens=0"], "max_new_tokens cannot be an option of generate() here: it has an option of its own"),
        (["beams=3"], "generate() has no option 'beams' here: choose from do_sample, num_beams"),
        (["return_dict_in_generate=false"], "no option 'return_dict_in_generate' here"),
        (["use_cache=false"], "no option 'use_cache' here"),
        (["num_beams=3", "num_beams=4"], "num_beams is given twice"),
        (["num_beams"], "write key=value"),
        (["=3"], "no option ''"),
    ],
)
def test_what_is_not_clearly_meant_is_refused(texts: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_options(texts)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    "options", [{"do_sample": "no"}, {"do_sample": 1}, {"num_beams": True}, {"num_beams": 2.0}, {"nonsense": 1}]
)
def test_values_of_python_are_checked_too(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Settings(generate=options)


def test_fewest_tokens_fit_the_most() -> None:
    with pytest.raises(ConfigError, match="min_new_tokens is 11, but an answer has at most 10 tokens"):
        Settings(generate={"min_new_tokens": 11}).decoding(create("mini-pope"))


def test_options_are_those_of_transformers() -> None:
    assert set(OPTIONS) <= set(vars(GenerationConfig()))
    check_options({"do_sample": True, "num_beams": 2, "min_p": 0, "no_repeat_ngram_size": 3})
