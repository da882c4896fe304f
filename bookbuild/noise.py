"""Another machine: under ``SSLBOOK_NOISE=1`` (or another seed) torch and NumPy round as some other processor might.

Sums come out in another order there, exponentials from another library, and LAPACK chooses other signs of eigenvectors. Here each
result of a product, convolution, reduction, transcendental function or decomposition moves by -1, 0 or +1 unit in the last place,
each eigenvector or pair of singular vectors may change its sign, and each space of equal eigenvalues gets another basis. All of it
is a function of the result's bits, its place and the seed: the same call gives the same result again, as it does on a real
machine. What every machine has exactly stays: counts, halves, whatever has a zero in the last third of its mantissa.

A number that moves under it by more than rounding is random by nature, or ill-posed. `make elsewhere` holds all chapters and most
tests with it.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

TORCH = """
mm bmm addmm baddbmm addbmm addmv mv dot vdot convolution convolution_backward mkldnn_convolution linear sum mean var
std var_mean std_mean norm linalg_vector_norm cumsum prod logsumexp native_batch_norm _native_batch_norm_legit
native_batch_norm_backward batch_norm_update_stats native_layer_norm native_layer_norm_backward native_group_norm
native_group_norm_backward _cdist_forward _cdist_backward _euclidean_dist avg_pool2d avg_pool2d_backward
_adaptive_avg_pool2d _adaptive_avg_pool2d_backward upsample_bilinear2d _upsample_bilinear2d_aa index_add scatter_add
embedding_dense_backward trace _scaled_dot_product_flash_attention_for_cpu exp exp2 expm1 log log1p log2 log10 sin cos
tan tanh sinh cosh asin acos atan atan2 sigmoid softplus softplus_backward gelu gelu_backward erf erfc erfinv _softmax
_log_softmax _softmax_backward_data _log_softmax_backward_data rsqrt pow lgamma digamma log_sigmoid_forward
log_sigmoid_backward binary_cross_entropy_with_logits silu elu logaddexp tanh_backward sigmoid_backward linalg_eig
linalg_qr linalg_inv_ex _linalg_solve_ex linalg_lstsq linalg_cholesky_ex _linalg_det _linalg_slogdet
linalg_lu_factor_ex linalg_matrix_exp _linalg_eigvals linalg_solve_triangular cholesky_solve cholesky_inverse
_linalg_eigh _linalg_svd
"""
"""Operations of torch whose last digit is the library's or the processor's own."""
MAPS = "exp exp2 expm1 log log1p log2 log10 sin cos tan tanh sinh cosh arctan arctan2 arccos arcsin power logaddexp"
FUNCTIONS = {
    "numpy": "dot vdot inner tensordot einsum sum",
    "numpy.linalg": "eig eigvals eigvalsh svdvals qr inv solve det slogdet cholesky lstsq pinv norm matrix_power eigh svd",
    "scipy.linalg": "eig eigvals eigvalsh svdvals qr inv solve det cholesky lstsq pinv expm null_space orth eigh svd",
}
EQUAL = {8: 1e-10, 4: 1e-4}
"""From which relative distance on eigenvalues of so many bytes are two, and their vectors' basis not the library's choice."""
_MOVED = frozenset(TORCH.split())
_CHUNK = 2**15
_LAYOUT: dict[int, tuple[Any, int]] = {8: (np.uint64, 20), 4: (np.uint32, 8)}
_LOOP = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 4)
_kept: list[Any] = []  # what C calls must not be collected
_seed = 0


def start(seed: str) -> None:
    """Round otherwise from here on, in this thread; ``seed`` is a whole number from 0 on."""
    global _seed
    _seed = int(seed)
    AnotherMachine().__enter__()
    for module, names in FUNCTIONS.items():
        there = importlib.import_module(module)
        for name in filter(functools.partial(hasattr, there), names.split()):
            setattr(there, name, _otherwise(getattr(there, name)))
    # The inner loops of ufuncs too: ``@`` and methods don't look a function up by its name. A ufunc keeps pointers to its loops, 32
    # bytes after its beginning; a loop gets ``(arrays, sizes, strides, data)``.
    for ufunc in (np.matmul, *(getattr(np, name) for name in MAPS.split())):
        first = ctypes.c_void_p.from_address(id(ufunc) + 32).value or 0
        loops = (ctypes.c_void_p * len(ufunc.types)).from_address(first)
        for at, types in enumerate(ufunc.types):
            if types[-1] in "fd" and set(types) <= {types[-1], "-", ">"}:
                loop = _LOOP(loops[at] or 0)
                here = _LOOP(functools.partial(_loop, loop, ufunc, np.dtype(types[-1])))
                _kept.extend((loop, here))
                loops[at] = ctypes.cast(here, ctypes.c_void_p).value
    methods: Any = importlib.import_module(f"numpy.{'_core' if hasattr(np, '_core') else 'core'}._methods")
    methods.umr_sum = _otherwise(methods.umr_sum)  # what ``array.sum()`` and ``array.mean()`` call


@functools.cache
def _steps() -> np.ndarray:
    """-1, 0 and 1, at random, for each number of 16 bits."""
    return np.random.default_rng(_seed).integers(-1, 2, 2**16)


def nudge(values: np.ndarray) -> None:
    """Move each inexact value of a contiguous array of float32 or float64 by -1, 0 or 1 unit in the last place, in place."""
    kind, zeros = _LAYOUT[values.itemsize]
    bits = values.reshape(-1).view(kind)
    place = np.arange(min(_CHUNK, bits.size), dtype=kind) * kind(0x9E3779B1)
    for begin in range(0, bits.size, _CHUNK):
        part = bits[begin : begin + _CHUNK]
        mixed = (part ^ (place[: part.size] + kind(begin))) * kind(0xD1B54A35)
        mixed ^= mixed >> kind(15)
        step = _steps()[(mixed & kind(0xFFFF)).astype(np.intp)]
        step[part & kind(2**zeros - 1) == 0] = 0
        part += step.astype(kind)  # modulo its size: -1 is the largest


def _signs(vectors: np.ndarray) -> np.ndarray:
    """A sign for each column, ``(..., 1, k)``, of its bits and its place."""
    largest = np.ascontiguousarray(np.abs(vectors).max(-2, keepdims=True)).astype(np.float64)
    mixed = (largest.view(np.uint64) >> np.uint64(8)) + np.arange(largest.size, dtype=np.uint64).reshape(largest.shape)
    return np.sign(_steps()[(mixed * np.uint64(0x9E3779B1) >> np.uint64(12) & np.uint64(0xFFFF)).astype(np.intp)] + 0.5)


def _rebase(values: np.ndarray, *vectors: np.ndarray) -> None:
    """Give vectors, in columns, other signs, and those of equal ``values`` another basis, all the same, in place.

    Columns beyond the values span a null space, and get another basis, too.
    """
    count = values.shape[-1]
    if not values.size or not all(part.size for part in vectors):
        return
    signs = _signs(vectors[0][..., :count])
    for part in vectors:
        part[..., :count] *= signs
        part[..., count:] = part[..., count:] @ _turn(part.shape[-1] - count, part)
    size = np.abs(values).max(-1, keepdims=True)
    apart = np.abs(np.diff(values, axis=-1)) > EQUAL[values.itemsize] * size
    for where in map(tuple, np.argwhere(~apart.all(-1))):
        for group in np.split(np.arange(count), np.flatnonzero(apart[where]) + 1):
            for part in vectors if len(group) > 1 else ():
                part[where][:, group] = part[where][:, group] @ _turn(len(group), part)


def _turn(size: int, like: np.ndarray) -> np.ndarray:
    """An orthogonal matrix drawn at random."""
    drawn = np.random.default_rng(_seed + size).standard_normal((size, size))
    return np.linalg.qr(drawn)[0].astype(like.dtype)


# --- torch ---------------------------------------------------------------------------------------------------------------


class AnotherMachine(TorchDispatchMode):
    """Inside it torch rounds otherwise."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, and move what it gives."""
        out = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name not in _MOVED and not (name.endswith("_") and name[:-1] in _MOVED):
            return out
        parts = [part for part in (out if isinstance(out, (tuple, list)) else (out,)) if type(part) is torch.Tensor]
        if any(part.device.type != "cpu" for part in parts):
            return out  # a GPU's rounding is its own
        if name == "_linalg_eigh" and parts[1].numel():
            _rebase(parts[0].numpy(), parts[1].numpy())
        elif name == "_linalg_svd" and parts[0].numel() and parts[2].numel():
            _rebase(parts[1].numpy(), parts[0].numpy(), parts[2].numpy().conj().swapaxes(-1, -2))
        for part in [torch.view_as_real(part) if part.is_complex() else part for part in parts]:
            if part.dtype not in (torch.float32, torch.float64) or not part.numel():
                continue
            if torch.ops.aten.is_non_overlapping_and_dense(part):  # in whatever order: as it lies in memory
                nudge(part.as_strided((part.numel(),), (1,)).numpy())
            else:
                moved = part.contiguous()
                nudge(moved.numpy())
                part.copy_(moved)
        return out


# --- NumPy and SciPy -------------------------------------------------------------------------------------------------------


def _otherwise(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of NumPy or SciPy whose results are moved."""

    @functools.wraps(function)
    def moved(*args: Any, **named: Any) -> Any:
        out = function(*args, **named)
        parts = list(out) if isinstance(out, tuple) else [out]
        parts = [np.array(p, order="C") if isinstance(p, (np.ndarray, np.floating)) else p for p in parts]
        if function.__name__ == "eigh" and len(parts) == 2:
            _rebase(*parts)
        elif function.__name__ == "svd" and len(parts) == 3:
            _rebase(parts[1], parts[0], parts[2].conj().swapaxes(-1, -2))
        elif function.__name__ == "null_space":
            parts[0] = parts[0] @ _turn(parts[0].shape[1], parts[0])
        for part in parts:
            if isinstance(part, np.ndarray) and part.real.dtype in (np.float32, np.float64):
                nudge(part.reshape(-1).view(part.real.dtype))
        parts = [p[()] if isinstance(p, np.ndarray) and not p.ndim else p for p in parts]
        named_tuple = type(out) if hasattr(out, "_fields") else lambda *parts: parts
        return named_tuple(*parts) if isinstance(out, tuple) else parts[0]

    return moved


def _loop(loop: Any, ufunc: np.ufunc, dtype: np.dtype[Any], args: int, sizes: int, strides: int, data: int) -> None:
    """Run an inner loop and move its output."""
    nin = ufunc.nin
    out = (ctypes.c_void_p * 3).from_address(args)[nin]  # before the loop moves it on
    size, step = (ctypes.c_ssize_t * 4).from_address(sizes), (ctypes.c_ssize_t * 9).from_address(strides)
    shape: tuple[int, ...] = (size[0],)
    by: tuple[int, ...] = (step[nin] or dtype.itemsize,)
    if ufunc is np.matmul:
        shape, by = (size[0], size[1], size[3]), (step[2], step[7], step[8])
    loop(args, sizes, strides, data)
    if all(shape) and min(by) >= 0:
        length = sum((n - 1) * s for n, s in zip(shape, by, strict=True)) + dtype.itemsize
        there = np.ndarray(shape, dtype, (ctypes.c_char * length).from_address(out), strides=by)  # type: ignore[arg-type]
        moved = np.array(there, order="C")
        nudge(moved)
        there[...] = moved
