"""Numbers on the command line of the judging commands: in range, or one line and exit code 2."""

import argparse
import importlib.util
from pathlib import Path

import pytest

from inference_kernels.judge.options import add_options

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
COMMANDS = ("judge_solution.py", "benchmark_solutions.py", "audit_solutions.py")
NO_NUMBER = ("nan", "-nan", "inf", "-inf", "1e999", "-1", "-5", "1e30", "", "two", "9" * 5000)
# option -> (refused beside NO_NUMBER, accepted)
RANGES = {
    "--timeout": (("0", "-0.0", "1e-9", "604801"), ("0.5", "600", "604800")),
    "--call-timeout": (("0", "1e-300"), ("0.01", "60")),
    "--lock-timeout": (("-0.1", "604801"), ("0", "3600")),
    "--memory-limit": (("0", "0.1", "65537"), ("0.25", "64", "65536")),
    "--repeat": (("0", "1", "2.5", "2e3", "1001"), ("2", "7")),
}


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser()
    add_options(result)
    return result


@pytest.mark.parametrize("option", RANGES)
def test_numbers_out_of_range_are_refused(option, capsys):
    refused, accepted = RANGES[option]
    for text in (*NO_NUMBER, *refused):
        with pytest.raises(SystemExit) as ended:
            parser().parse_args(["--gpu", "cpu", f"{option}={text}"])
        error = capsys.readouterr().err.splitlines()[-1]
        assert ended.value.code == 2 and f"argument {option}: " in error and " from " in error, (text, error)
        assert len(error) < 200 and "nan" not in error.replace(repr(text), "")
    for text in accepted:
        values = vars(parser().parse_args(["--gpu", "cpu", option, text]))
        assert values[option.strip("-").replace("-", "_")] == float(text)


@pytest.mark.parametrize("script", COMMANDS)
def test_every_number_of_the_commands_has_a_range(script):
    """No option takes whatever int or float do, and defaults lie in the ranges."""
    spec = importlib.util.spec_from_file_location(Path(script).stem, SCRIPTS / script)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    numbers = [action for action in module.parser()._actions if isinstance(action.default, (int, float))]
    numbers = [action for action in numbers if not isinstance(action.default, bool)]
    assert len(numbers) >= len(RANGES)
    for action in module.parser()._actions:
        assert action.type not in (int, float), action.option_strings
    for action in numbers:
        assert action.type(str(action.default)) == action.default
        with pytest.raises(argparse.ArgumentTypeError):
            action.type("-1")
