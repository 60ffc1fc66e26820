from __future__ import annotations

import decimal
import importlib.resources
import json

import mpmath
from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_utils import execute_multi_turn_func_call

from conversations.catalogue import APIS, Api
from conversations.corpus import CONVERSATIONS, Conversation
from conversations.direct import run_directly
from conversations.execution import Instances
from conversations.state import canonical_state, digest

_BY_PREFIX: dict[str, Api] = {api.prefix: api for api in APIS}


def _with_api(corpus: dict[str, Conversation], prefix: str) -> Instances:
    return Instances(next(found for found in corpus.values() if prefix in [api.prefix for api in found.apis]))


def test_two_direct_runs_end_alike(corpus: dict[str, Conversation]) -> None:
    """All 200 final states, random generators included, come out the same again."""
    first, second = (list(run_directly(corpus.values())) for _ in range(2))
    assert [final.digest for final in first] == [final.digest for final in second]
    assert len(first) == CONVERSATIONS


def test_direct_runs_end_as_the_benchmarks_own_executor_does(corpus: dict[str, Conversation]) -> None:
    """Parsing, naming and patching the calls changes no final state against evaluating their text."""
    path = importlib.resources.files("bfcl_eval") / "data/possible_answer/BFCL_v4_multi_turn_base.json"
    texts = {row["id"]: row["ground_truth"] for row in map(json.loads, path.read_text().splitlines())}
    equal = 0
    for final in run_directly(corpus.values()):
        conversation = corpus[final.conversation]
        for turn in texts[conversation.id]:
            _, instances = execute_multi_turn_func_call(
                turn,
                conversation.initial_config,
                [api.class_name for api in conversation.apis],
                model_name="oracle",
                test_entry_id=conversation.id,
            )
        theirs = {api.prefix: instances[api.class_name] for api in conversation.apis}
        equal += digest(canonical_state(theirs)) == final.digest
    assert equal == CONVERSATIONS


def test_default_lists_are_not_shared(corpus: dict[str, Conversation]) -> None:
    """A mention in one conversation's tweet appears in no other's."""
    posting = _BY_PREFIX["posting"]
    one, other = _with_api(corpus, "posting"), _with_api(corpus, "posting")
    tweets = []
    for instances in (one, other):
        instances._by_prefix["posting"].authenticated = True
        tweets.append(instances.run(posting, "post_tweet", {"content": "hello"}).result["id"])
    one.run(posting, "mention", {"tweet_id": tweets[0], "mentioned_usernames": ["@ada"]})
    assert other.run(posting, "get_tweet", {"tweet_id": tweets[1]}).result["mentions"] == []


def test_results_and_arguments_are_copies(corpus: dict[str, Conversation]) -> None:
    """What a caller holds and what the API holds never change each other."""
    posting, tags = _BY_PREFIX["posting"], ["#one"]
    instances = _with_api(corpus, "posting")
    instances._by_prefix["posting"].authenticated = True
    tweet = instances.run(posting, "post_tweet", {"content": "hello", "tags": tags}).result
    before = instances.state()
    tags.append("#two")
    tweet["tags"].append("#three")
    assert instances.state() == before


def test_numbers_leave_as_json_and_precision_stays(corpus: dict[str, Conversation]) -> None:
    """Mpf and Decimal come back as floats, and the process computes as before."""
    maths = _BY_PREFIX["maths"]
    instances = _with_api(corpus, "maths")
    before = (mpmath.mp.dps, decimal.getcontext().prec)
    logarithm = instances.run(maths, "logarithm", {"value": 36.0, "base": 6.0, "precision": 4})
    root = instances.run(maths, "square_root", {"number": 2, "precision": 5})
    assert logarithm.result == {"result": 2.0}
    assert root.result == {"result": 1.4142}
    assert (mpmath.mp.dps, decimal.getcontext().prec) == before


def test_every_failure_is_an_answer(corpus: dict[str, Conversation]) -> None:
    """An error result, an exception, a number JSON cannot say, a missing API: tool errors with a text."""
    vehicle, maths = _BY_PREFIX["vehicle"], _BY_PREFIX["maths"]
    driving, counting = _with_api(corpus, "vehicle"), _with_api(corpus, "maths")
    answers = [
        driving.run(vehicle, "setHeadlights", {"mode": "blue"}),
        driving.run(vehicle, "lockDoors", {"unlock": True, "door": ["roof"]}),
        counting.run(maths, "power", {"base": -4, "exponent": 0.5}),
        counting.run(maths, "multiply", {"a": 1e308, "b": 10.0}),
        Instances(corpus["multi_turn_base_0"]).run(vehicle, "get_current_speed", {}),
    ]
    assert all(answer.tool_error for answer in answers)
    assert [answer.result["error"] for answer in answers] == [
        "Invalid headlight mode.",
        "Error during execution: 'roof'",
        "Error during execution: the result (1.2246467991473532e-16+2j) is not a real number",
        "Error during execution: the result inf is not a finite number",
        "multi_turn_base_0 has no vehicle API",
    ]
