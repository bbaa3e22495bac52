"""What valgrind tells is counted once, by stage, for one request."""

from __future__ import annotations

from loadtests.bench.instructions import STAGES, counts, result
from loadtests.report.result import markdown
from services.compiled import SERVICES

TOLD = """\
Ir
10,000 (100.0%)  PROGRAM TOTALS

Ir                file:function
 2,000 (20.0%)  /x/build/__native_guard.c:CPyDef_guard___Inbound___take [/x/services/native/weir.so]
   500 ( 5.0%)  /usr/include/object.h:CPyDef_guard___Inbound___take [/x/services/native/weir.so]
 1,000 (10.0%)  /x/build/__native_service.c:CPyDef_service___Service____log_request [/x/services/native/weir.so]
   900 ( 9.0%)  /x/build/__native_service.c:CPyDef_service___Service____log_request'2 [/x/services/native/weir.so]
 3,000 (30.0%)  /x/Objects/obmalloc.c:_PyObject_Free [/usr/lib/libpython.so]
"""


def test_a_function_counts_in_its_stage_and_the_rest_is_told() -> None:
    found = counts(TOLD, 10)
    assert found.total == 1000.0
    assert found.by_stage["HTTP from the client"] == 250.0, "with what is inlined into it"
    assert found.by_stage["log"] == found.observed == 100.0, "what calls itself counts once"
    written = markdown(result({"answer": found}, "compiled", 10), command="", machine="a machine")
    assert "| event loop, task, coroutines and the rest | 650 |" in written


def test_code_that_is_not_compiled_has_no_stages() -> None:
    found = counts("10,000 (100.0%)  PROGRAM TOTALS\n", 10)
    written = markdown(result({"answer": found}, "Python", 10), command="", machine="a machine")
    assert "the rest" not in written


def test_each_function_of_a_stage_is_one_of_the_sources() -> None:
    sources = "\n".join(file.read_text(encoding="utf-8") for file in SERVICES.rglob("*.py"))
    for function in (each for functions in STAGES.values() for each in functions):
        name = function.removesuffix("_gen_____mypyc_generator_helper__").rpartition("___")[2]
        names = (name, name.rpartition("_")[0])  # that of a coroutine ends with its class
        assert any(f"{kind}{each}" in sources for kind in ("def ", "def _", "class ") for each in names if each), (
            function
        )
