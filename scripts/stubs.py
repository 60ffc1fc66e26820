"""Generate stubs and descriptor images from protos/, or check that the committed stubs are current.

    write       stubs into client/python/lineside/v1, image into build/lineside.binpb
    check       stubs into a scratch directory, compared: exit 1 naming those that differ; image as above
    write-go    Go's stubs into client/go/linesidev1, by the generators in build/bin: `make client-go`
    check-go    those, compared
    write-node  TypeScript's stubs into client/node/src/gen, not committed: `make client-node`
    baseline    the image that `buf breaking` compares with, protos/baseline.binpb (no comments in it)

Run it with the interpreter of .venv-proto (requirements/proto.txt): the generator is part of the contract.
"""

from __future__ import annotations

import filecmp
import shutil
import sys
import tempfile
from pathlib import Path

import google.rpc.status_pb2
import grpc_tools
from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
PROTOS = ROOT / "protos"
STUBS = ROOT / "client" / "python"
GO = ROOT / "client" / "go"
GO_MODULE = "github.com/lineside/lineside/client/go"
NODE = ROOT / "client" / "node"
NODE_IMPORTS = [f"google/{name}.proto" for name in ("api/field_behavior", "rpc/status", "rpc/error_details")]
"""What our protos import, and the details of errors; the generator's runtime has none of them."""
BASELINE = PROTOS / "baseline.binpb"
IMAGE = ROOT / "build" / "lineside.binpb"
PACKAGE = Path("lineside") / "v1"
PACKAGE_DOCSTRING = (
    '"""The wire contract `lineside.v1`, generated from protos/lineside/v1 by `make proto`."""\n'
)


def run_protoc(*arguments: str) -> None:
    """Run the pinned protoc over every proto of the package; exit with its own messages when it refuses."""
    sources = sorted(str(path.relative_to(PROTOS)) for path in (PROTOS / PACKAGE).glob("*.proto"))
    if not sources:
        sys.exit(f"no protos in {PROTOS / PACKAGE}")
    well_known = Path(grpc_tools.__file__).parent / "_proto"
    googleapis = Path(google.rpc.status_pb2.__file__).parents[2]
    includes = [f"-I{path}" for path in (PROTOS, googleapis, well_known)]
    if protoc.main(["protoc", *includes, *arguments, *sources]) != 0:
        sys.exit("protoc refused the protos")


def build_image(image: Path, *options: str) -> None:
    """Write the FileDescriptorSet, imports included: buf reads it, and so do callers without reflection."""
    image.parent.mkdir(parents=True, exist_ok=True)
    run_protoc("--include_imports", *options, f"--descriptor_set_out={image}")


def generate(directory: Path) -> None:
    """Write the stubs of the package, fully typed, below `directory`."""
    scripts = Path(sys.executable).parent
    run_protoc(
        f"--plugin=protoc-gen-mypy={scripts / 'protoc-gen-mypy'}",
        f"--plugin=protoc-gen-mypy_grpc={scripts / 'protoc-gen-mypy_grpc'}",
        f"--python_out={directory}",
        f"--grpc_python_out={directory}",
        f"--mypy_out=quiet:{directory}",
        f"--mypy_grpc_out=quiet:{directory}",
    )
    (directory / PACKAGE / "__init__.py").write_text(PACKAGE_DOCSTRING)


def names(directory: Path) -> set[str]:
    """List the generated files of a stub directory."""
    return {path.name for path in directory.iterdir() if path.suffix in {".py", ".pyi"}}


def generate_go(directory: Path) -> None:
    """Write Go's stubs below `directory`."""
    tools = [ROOT / "build" / "bin" / f"protoc-gen-{name}" for name in ("go", "go-grpc")]
    run_protoc(
        *(f"--plugin={tool.name}={tool}" for tool in tools),
        *(f"--{name}_out={directory}" for name in ("go", "go-grpc")),
        *(f"--{name}_opt=module={GO_MODULE}" for name in ("go", "go-grpc")),
    )


def check_go() -> None:
    """The same as `check`, for Go."""
    with tempfile.TemporaryDirectory() as scratch:
        generate_go(Path(scratch))
        fresh, kept = Path(scratch) / "linesidev1", GO / "linesidev1"
        every = sorted({path.name for side in (fresh, kept) for path in side.iterdir()})
        _, differing, missing = filecmp.cmpfiles(fresh, kept, every, shallow=False)
    if differing or missing:
        sys.exit(
            f"stubs are not what the protos give, run `make client-go`: {', '.join(differing + missing)}"
        )


def generate_node() -> None:
    """Replace TypeScript's stubs, by the generator that client/node has in its node_modules."""
    directory = NODE / "src" / "gen"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    run_protoc(
        f"--plugin={NODE / 'node_modules' / '.bin' / 'protoc-gen-es'}",
        f"--es_out={directory}",
        "--es_opt=target=ts,import_extension=js",
        *NODE_IMPORTS,
    )


def write() -> None:
    """Replace the committed stubs; stubs of protos that are gone go too."""
    with tempfile.TemporaryDirectory() as scratch:
        generate(Path(scratch))
        fresh, kept = Path(scratch) / PACKAGE, STUBS / PACKAGE
        kept.mkdir(parents=True, exist_ok=True)
        for stale in names(kept) - names(fresh):
            (kept / stale).unlink()
        for name in names(fresh):
            shutil.copyfile(fresh / name, kept / name)
    build_image(IMAGE, "--include_source_info")


def check() -> None:
    """Exit 1 with the names of committed stubs that differ from what the protos give now."""
    with tempfile.TemporaryDirectory() as scratch:
        generate(Path(scratch))
        fresh, kept = Path(scratch) / PACKAGE, STUBS / PACKAGE
        every = sorted(names(fresh) | names(kept))
        _, differing, missing = filecmp.cmpfiles(fresh, kept, every, shallow=False)
    if differing or missing:
        sys.exit(f"stubs are not what the protos give, run `make proto`: {', '.join(differing + missing)}")
    build_image(IMAGE, "--include_source_info")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["write"]:
            write()
        case ["check"]:
            check()
        case ["write-go"]:
            generate_go(GO)
        case ["check-go"]:
            check_go()
        case ["write-node"]:
            generate_node()
        case ["baseline"]:
            build_image(BASELINE)
        case _:
            sys.exit(__doc__)
