"""Libraries in place of CUDA's, with which onnxruntime-gpu's own provider comes up where no card is.

Device memory is the host's, copies are made, and every kernel, product and convolution does nothing:
values are meaningless. What is real is ONNX Runtime: its provider, its options, its requests for memory
and when it gives it back. Made of the symbols that the installed provider asks for: none is forgotten.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from tests.native.fakes import HERE, compiler

_OF = """
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
using Size = size_t;
extern "C" {
"""
_MEMORY = "*p = aligned_alloc(256, (n + 255) / 256 * 256);"
_BODIES = {
    "cudaGetDeviceCount": "(int* n) { *n = 1; return 0; }",
    "cudaGetDevice": "(int* n) { *n = 0; return 0; }",
    "cudaDeviceGetAttribute": "(int* v, int a) { *v = a == 75 ? 9 : a == 76 ? 0 : 1024; return 0; }",
    "cudaDriverGetVersion": "(int* v) { *v = 13000; return 0; }",
    "cudaRuntimeGetVersion": "(int* v) { *v = 13000; return 0; }",
    "cudaMemGetInfo": "(Size* a, Size* b) { *a = *b = Size(8) << 30; return 0; }",
    # by the offsets of CUDA 13's cudaDeviceProp: totalGlobalMem to maxGridSize, major
    "cudaGetDeviceProperties": """(char* p) {
      std::memset(p, 0, 1008), std::strcpy(p, "stand-in");
      *(Size*)(p + 288) = Size(8) << 30, *(Size*)(p + 296) = 65536, *(Size*)(p + 312) = 1 << 20;
      for (int at = 304; at < 348; at += 4) if (at < 312 || at > 316) *(int*)(p + at) = 1024;
      *(int*)(p + 308) = 32, *(int*)(p + 360) = 9;
      return 0; }""",
    "cudaMalloc": f"(void** p, Size n) {{ {_MEMORY} return 0; }}",
    "cudaMallocHost": f"(void** p, Size n) {{ {_MEMORY} return 0; }}",
    "cudaHostAlloc": f"(void** p, Size n) {{ {_MEMORY} return 0; }}",
    "cudaFree": "(void* p) { std::free(p); return 0; }",
    "cudaFreeHost": "(void* p) { std::free(p); return 0; }",
    "cudaMemcpy": "(void* to, const void* of, Size n) { std::memcpy(to, of, n); return 0; }",
    "cudaMemcpyAsync": "(void* to, const void* of, Size n) { std::memcpy(to, of, n); return 0; }",
    "cudaMemset": "(void* p, int v, Size n) { std::memset(p, v, n); return 0; }",
    "cudaMemsetAsync": "(void* p, int v, Size n) { std::memset(p, v, n); return 0; }",
    "cudaStreamIsCapturing": "(void*, int* v) { *v = 0; return 0; }",
    "cudaPointerGetAttributes": "(int* a) { std::memset(a, 0, 24), *a = 2; return 0; }",
    "cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags": "(int* n) { *n = 1; return 0; }",
    "cudaFuncGetAttributes": "(char* a) { std::memset(a, 0, 128), *(int*)(a + 24) = 1024; return 0; }",
    "cublasGetMathMode": "(void*, int* m) { *m = 0; return 0; }",
}
_MAKES = re.compile(r"cuda(Stream|Event)Create\w*|cublas(Lt)?Create(_v2)?|cudnnCreate")
_TEXTS = re.compile(r"\w*Get(Error|Status|LastError)(Name|String)")
_CUDNN = ["cudnnCreate", "cudnnDestroy", "cudnnSetStream", "cudnnGetErrorString", "cudnnGetVersion"]
"""What is asked of cuDNN, which is loaded by name, where nothing convolves."""


def _body(name: str) -> str:
    if _TEXTS.fullmatch(name):
        return f'const char* {name}() {{ return "stand-in"; }}'
    if _MAKES.fullmatch(name):
        return f"int {name}(void** h) {{ *h = std::malloc(64); return 0; }}"
    if name == "__cudaRegisterFatBinary":
        return f"void** {name}() {{ static void* h[4]; return h; }}"
    if name == "cudnnGetVersion":
        return f"Size {name}() {{ return 91000; }}"
    return f"int {name}{_BODIES.get(name, '() { return 0; }')}"


def made(folder: Path, provider: Path) -> Path:
    """A folder for LD_LIBRARY_PATH, with the libraries that a CUDA provider asks for."""
    listed = ["nm", "-D", "--undefined-only", str(provider)]
    asked = subprocess.run(listed, capture_output=True, text=True, check=True).stdout
    libraries: dict[str, list[str]] = {"libcurand.so.10": [], "libcudnn.so.9": _CUDNN}
    for name, library in re.findall(r" U (\w+)@(lib(?:cuda|cublas)\w*\.so\.\d+)", asked):
        libraries.setdefault(library, []).append(name)
    for library, names in libraries.items():
        source, versions = folder / f"{library}.cpp", folder / f"{library}.map"
        source.write_text(_OF + "".join(f"{_body(name)}\n" for name in names) + "}\n")
        versions.write_text(f"{library} {{ *; }};\n")
        _shared(folder / library, source, f"-Wl,--version-script={versions}")
    extra = folder / "tensor_map.cpp"
    extra.write_text('extern "C" int cuTensorMapEncodeTiled() { return 1; }\n')
    _shared(folder / "libcuda.so.1", HERE / "fake_driver.cpp", str(extra))
    return folder


def _shared(library: Path, *sources: str | Path) -> None:
    flags = (
        "-w",
        "-O1",
        "-std=c++17",
        "-pthread",
        "-fPIC",
        "-shared",
        f"-Wl,-soname,{library.name}",
    )
    command = [*compiler(), *flags, *sources, "-ldl", "-o", library]
    subprocess.run([*map(str, command)], check=True)
