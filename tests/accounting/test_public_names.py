from __future__ import annotations

import subprocess
import sys
import types

import fedDP.accounting as accounting


def test_all_is_sorted_and_complete() -> None:
    names = accounting.__all__
    assert len(set(names)) == len(names)
    public = {
        name
        for name, value in vars(accounting).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    }
    assert set(names) == public
    assert names == sorted(names, key=lambda name: (not name.isupper(), not name[0].isupper(), name))


def test_functions_win_over_modules_of_the_same_name() -> None:
    assert callable(accounting.rdp)


def test_importing_it_is_light() -> None:
    heavy = ["torch", "flwr", "ray", "dp_accounting", "scipy", "sqlalchemy"]
    code = f"import sys, fedDP.accounting; print([m for m in {heavy!r} if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
