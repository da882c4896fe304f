r"""The covariance operator as an operator: products with it, never its matrix.

On a finite population of ``N`` samples with ``V`` equally likely views each, every operator of Section 4 of [tian2020]
has the form

    OP = sum_{a,b} C_ab  L_a R_b^T,      a, b over the N V views,

with connections :math:`R_a = K_l(x_a)` (and :math:`L_a = R_a`, except under l2 normalisation, where
:math:`R_a = K_a / \|f_a\|` and :math:`L_a = R_a P^\perp_{f_a}`), and a matrix ``C`` on the views that is a few means and
differences (:class:`Mixing`).  So ``OP v`` is one JVP, one mixing, one VJP.  The ``N V`` forward passes happen once.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from scipy.sparse.linalg import LinearOperator, eigsh
from torch import Tensor, nn
from torch.nn.functional import pad

from sslbook._ambient import anywhere, beside, copied, methods_anywhere, with_gradients
from sslbook._check import (
    counted,
    may_look,
    meant,
    refuse_unused,
    require_floating,
    require_number,
    require_one_of,
    require_whole,
)
from sslbook._machine import figure
from sslbook.losses.batch import BATCH_LOSSES
from sslbook.losses.pairs import half_squared_distance, length, pair_weight, project
from sslbook.operator.frozen import has_half, in_full, refuse_nonfinite
from sslbook.operator.layer import LayerInChunks, OpenedLayer, open_views, require_dense, unvec, vec
from sslbook.operator.view_weights import Loss, Mixing, PairMixing, gram_weights, name_of, own_loss

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAIRED = ("simple", "soft_triplet", "info_nce")
LOSSES = tuple(dict.fromkeys([*PAIRED, *(name for name, loss in BATCH_LOSSES.items() if loss.inner_products)]))
"""The names of losses that have an operator."""


@methods_anywhere
@dataclass(frozen=True)
class EigenPairs:
    r"""Eigenpairs of an operator are sorted from one end of its spectrum: the largest first, or the smallest first.

    values: the eigenvalues, ``(k,)``.  vectors: the orthonormal eigenvectors, ``(size, k)``, with their entries in the
    order of :func:`sslbook.operator.layer.vec`, which is ``weight.flatten(1).T.flatten()``.
    residuals: :math:`\|OP v - \lambda v\| / |\lambda|`, ``(k,)``.  shape: the shape of the layer's weight.
    """

    values: Tensor
    vectors: Tensor
    residuals: Tensor
    shape: tuple[int, ...] | None = None

    def __repr__(self) -> str:
        values = ", ".join(f"{value:.3g}" for value in self.values.tolist())
        return f"EigenPairs(values {values}; largest residual {self.residuals.max().item():.1e})"

    def directions(self, shape: tuple[int, ...] | None = None) -> Tensor:
        """Return the eigenvectors in the weight's shape, ``(k, *shape)``; give ``shape`` if the pairs have none."""
        shape = self._fitting("shape", shape)
        return torch.stack([unvec(v, shape) for v in self.vectors.T])

    def share(self, step: Tensor) -> float:
        r"""Return the share :math:`\|V^T vec(s)\|^2 / \|s\|^2` of a step's squared length in the eigenvectors' span.

        step: a tensor in the weight's shape, such as its ``.grad``.  Raises ValueError for a zero step or another shape.
        """
        require_floating(step=step)
        self._fitting("step", tuple(step.shape))
        whole = vec(step.detach()).to(self.vectors.device, torch.float64)
        if not bool(whole.any()):
            raise ValueError("step must not be zero everywhere: it has no direction")
        return float((self.vectors.T.double() @ (whole / whole.norm())).square().sum())

    def _fitting(self, what: str, given: tuple[int, ...] | None) -> tuple[int, ...]:
        """The weight's shape, refused where another one was given."""
        own = given if self.shape is None else self.shape
        if own is None:
            raise ValueError("shape must be given, that of the layer's weight: these pairs don't know it")
        if (given is not None and tuple(given) != tuple(own)) or math.prod(own) != len(self.vectors):
            wanted = f"{tuple(self.shape)}" if self.shape else f"that of {len(self.vectors)} weights"
            raise ValueError(f"{what} must have the shape of the layer's weight, {wanted}, got {tuple(given or own)}")
        return tuple(own)

    def plot(self, shape: tuple[int, ...] | None = None, image: tuple[int, int, int] | None = None) -> Figure:
        """Draw, for each eigenvector as a matrix with a row per output, the input pattern with the largest response.

        This pattern is the matrix's first right singular vector.  Three input channels are shown as colours.  Any other
        number of them lie side by side, row by row, each in the same scale.

        shape: the weight's shape, needed only if the pairs have none.
        image: the shape ``(C, H, W)`` of a linear layer's inputs; for a convolution, the kernel's shape is used.
        """
        directions = self.directions(shape).cpu()
        inputs = tuple(directions.shape[2:])
        picture = tuple(image or inputs)
        if len(picture) != 3 or math.prod(picture) != math.prod(inputs):
            raise ValueError(f"image must be (C, H, W) of the layer's {math.prod(inputs)} inputs, got {picture}")
        patterns = torch.linalg.svd(directions.flatten(2), full_matrices=False).Vh[:, 0].unflatten(1, picture)
        drawn = figure(figsize=(1.3 * len(patterns), 1.6))
        places = drawn.subplots(1, len(patterns), squeeze=False)[0]
        for axes, value, pattern in zip(places, self.values, patterns, strict=True):
            shown = 0.5 + 0.5 * pattern / pattern.abs().max()
            axes.imshow(shown.permute(1, 2, 0) if len(shown) == 3 else _tiled(shown), cmap="gray", vmin=0, vmax=1)
            axes.set_title(f"{value:.3g}", fontsize=9)
            axes.set_axis_off()
        return drawn


def _apart(linear: Tensor, output: Tensor) -> float:
    """Their :func:`relative_gap`, and 0 where both are zero."""
    return relative_gap(linear, output) if bool(linear.any() | output.any()) else 0.0


def _tiled(pattern: Tensor) -> Tensor:
    """All channels ``(C, H, W)`` in one picture, row by row, with a gap between them."""
    if len(pattern) == 1:
        return pattern[0]
    across = math.isqrt(len(pattern) - 1) + 1
    apart = pad(pattern, (0, 1, 0, 1, 0, -len(pattern) % across), value=math.nan)
    tiled: Tensor = apart.unflatten(0, (-1, across)).transpose(1, 2).flatten(2, 3).flatten(0, 1)
    return tiled


@methods_anywhere
@dataclass(frozen=True, eq=False)
class CovarianceOperator:
    r"""This is the operator ``OP_l`` of one layer on a fixed population of views.

    :func:`covariance_operator` and :func:`intra_operator` create it.  opened: the layer, with its inputs and
    the network's outputs for all views.  population: the pair ``(N, V)``.  mixing: the weight of each pair of views, ``C``.
    of: the name of the loss.  normalize: whether the output is l2-normalised (Eq. 56), which makes the operator a cross-covariance.
    """

    opened: OpenedLayer | LayerInChunks
    population: tuple[int, int]
    mixing: Mixing | PairMixing
    normalize: bool = False
    of: str = "simple"

    def __repr__(self) -> str:
        (n, v), shape = self.population, " x ".join(map(str, self.opened.weight.shape))
        kind = "symmetric" if self.symmetric else "not symmetric"
        place = f"layer {self.opened.name!r} ({shape} weights), {counted(n, 'sample')} x {counted(v, 'view')}"
        given = "" if self.opened.given == self.dtype else f" of weights given in {self.opened.given}"
        return f"CovarianceOperator({place}, loss {self.of}, {kind}, {self.dtype}{given}, {self.device})"

    @property
    def shape(self) -> tuple[int, int]:
        """The shape ``(size, size)``, where ``size`` is the layer's number of weights."""
        return self.opened.size, self.opened.size

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the layer's weight."""
        return self.opened.weight.dtype

    @property
    def device(self) -> torch.device:
        """The device of the layer's weight."""
        return self.opened.weight.device

    @property
    def symmetric(self) -> bool:
        """Whether the operator equals its transpose by construction."""
        return self.mixing.symmetric and not self.normalize

    def apply(self, direction: Tensor) -> Tensor:
        """Apply ``OP`` to one direction in the weight's shape, or to several, ``(k, *shape)``; the result has the same shape."""
        require_floating(direction=direction)
        return self._pushed(self.opened.jvp(direction))

    def apply_transpose(self, direction: Tensor) -> Tensor:
        """Apply ``OP^T`` to a direction in the weight's shape, or to ``(k, *shape)``."""
        require_floating(direction=direction)
        field = self.opened.jvp(direction)
        return self._held(self.opened.vjp(self._right(self._mix(self._left(field), adjoint=True))), field)

    def matvec(self, vector: Tensor) -> Tensor:
        """Return ``OP v`` for ``v`` of shape ``(size,)``, in the order of :func:`sslbook.operator.layer.vec`."""
        require_floating(vector=vector)
        return vec(self.apply(unvec(vector, self.opened.weight.shape)))

    def rmatvec(self, vector: Tensor) -> Tensor:
        """Return ``OP^T v``."""
        require_floating(vector=vector)
        return vec(self.apply_transpose(unvec(vector, self.opened.weight.shape)))

    def matmat(self, matrix: Tensor) -> Tensor:
        """Return ``OP M`` for ``M`` of shape ``(size, k)``, with its ``k`` products in one batched pass."""
        return self._columns(self.apply, matrix)

    def update(self) -> Tensor:
        r"""Return ``OP vec(W)`` in the weight's shape, the paper's update (Eq. 3) for outputs of degree 1 in the layer.

        Warns if the step differs because of a bias, a parallel path or a degree other than 1; then use :meth:`exact_update`.
        """
        linear = self.opened.jvp(self.opened.weight)
        gap = _apart(linear, self.opened.output)
        if gap > 0.01:  # more than rounding in any precision, and than what a step of training would notice
            warnings.warn(
                f"the outputs aren't K^T vec(W) of layer {self.opened.name!r}, as OP vec(W) supposes: they differ by {gap:.0%} "
                "(a bias, a parallel path or another degree than 1); exact_update() is the step all the same",
                stacklevel=3,
            )
        return self._pushed(linear)

    def exact_update(self) -> Tensor:
        r"""Return the layer's step in *any* network, :math:`\mathrm{Cov}_x[\bar K_l, \bar f_L]`.

        This is minus the gradient in the layer's weight as a free parameter.  Where training moves other numbers, because
        the weight is pruned, masked, or computed (``weight_norm``, ``parametrize``), its step is the image of this one in them.

        It equals :meth:`update` where :math:`K_l^T vec(W_l) = f_L`.  A bias, a parallel path or a degree other than 1
        violates this condition.  The method :meth:`euler_gap` measures how much the two sides of this equation differ.
        """
        return self._pushed(self.opened.output)

    def euler_gap(self, degree: float = 1.0) -> float:
        r"""Return the largest :math:`\|K_l^T vec(W_l) - \kappa f_L\| / \max \|\kappa f_L\|` over the population.

        Here :math:`\kappa` is the argument ``degree``.  The gap is 0 where Theorem 1 applies, and where both sides are zero,
        as with a head that starts at zero.
        """
        degree = require_number("degree", degree, above=0)
        return _apart(self.opened.jvp(self.opened.weight), degree * self.opened.output)

    def trace(self) -> float:
        """Return the exact trace, one output at a time; it costs about as many products as the network has outputs.

        It stores ``(N V)^2`` numbers if a linear layer has more weights than views, and otherwise ``N V size``.
        """
        opened, below = self.opened, self.opened.below
        by_views = isinstance(opened.module, nn.Linear) and below.ndim == 2 and len(below) <= opened.size
        # K_a = f_a (x) J_a^T, so that <K_a, K_b> is the product of two inner products; else gradients view by view
        gradients = opened.pulled_back if by_views else opened.sample_gradients
        # in float64, which holds products of four factors of any size, too
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        gram = total.new_zeros(len(below), len(below)) if by_views else None
        for unit in torch.eye(opened.output.shape[1], dtype=self.dtype, device=self.device):
            rows = unit.expand(opened.output.shape)
            left = gradients(self._left(rows)).double()
            right = gradients(self._right(rows)).double() if self.normalize else left
            if gram is None:
                total += (left * self._mix(right)).sum()
            else:
                gram += right @ left.T
        if gram is not None:
            total = self._mix(gram * (below.double() @ below.double().T)).diagonal().sum()
        return float(total)

    def dense(self) -> Tensor:
        """Return the matrix, computed from its definition term by term, as a reference for small layers."""
        left = right = self.opened.connections().unflatten(0, self.population)
        if self.normalize:
            norm, unit = (part.unflatten(0, self.population) for part in self._scales())
            right = right / norm[..., None]
            left = right - (right @ unit[..., None]) * unit[..., None, :]
        return self._held(self.mixing.dense(left, right), left)

    def top_eigenpairs(self, k: int = 5, *, tol: float = 1e-9, seed: int = 0) -> EigenPairs:
        r"""Return the ``k`` algebraically largest eigenpairs of a symmetric operator.

        Lanczos' method (ARPACK) finds them up to ``tol``.  If ``C`` is positive and ``N V n_L`` is below the number of
        weights, it uses :math:`B^T B`, where :math:`OP = B B^T`, :math:`B = K C^{1/2}`.  For at most ``4 k + 32`` weights,
        the matrix is formed.  Raises ValueError if the operator isn't symmetric or ``k`` is outside ``1 .. size``.
        """
        size = self.shape[0]
        if not self.symmetric:
            raise ValueError("eigenpairs are for symmetric operators; for others use to_scipy() and scipy's eigs")
        k = require_whole("k", k, least=1, most=size)
        tol = require_number("tol", tol, least=0)
        seed = require_whole("seed", seed, least=0)
        if size <= 4 * k + 32:
            basis = torch.linalg.eigh(_held(self.dense()))[1].flip(1)[:, :k]
        else:
            tol = max(tol, 4 * torch.finfo(self.dtype).eps)  # below it, float32 gains nothing
            root = self.mixing.root(*self.population)
            fields = self.opened.output.numel()
            dual = root is not None and 4 * k + 32 < fields < size
            basis = _dual_basis(self, root, k, tol, seed) if root and dual else _lanczos(self.to_scipy(), k, tol, seed)
        # In float64: LAPACK's single-precision sums over a million weights lose three digits.
        basis = torch.linalg.qr(torch.as_tensor(basis, dtype=torch.float64, device=self.device))[0]
        image = _held(self.matmat(basis.to(self.dtype))).double()
        if not bool(image.any()):  # a zero operator, unless squares of its fields are
            draw = torch.Generator().manual_seed(seed)
            direction = torch.randn(self.opened.weight.shape, generator=draw, dtype=self.dtype)
            _held(image.to(self.dtype), self._mix(self._right(self.opened.jvp(direction.to(self.device)))))
        small = basis.T @ image
        values, turn = torch.linalg.eigh(0.5 * (small + small.T))  # Rayleigh and Ritz, at no further cost
        values, turn = values.flip(0), turn.flip(1)
        vectors = basis @ turn
        gap = (image @ turn - vectors * values).norm(dim=0)
        residuals = gap / values.abs().clamp_min(torch.finfo(self.dtype).tiny)
        values, vectors, residuals = (part.to(self.dtype) for part in (values, vectors, residuals))
        return EigenPairs(values, vectors, residuals, tuple(self.opened.weight.shape))

    def bottom_eigenpairs(self, k: int = 5, *, tol: float = 1e-9, seed: int = 0) -> EigenPairs:
        """Return the ``k`` algebraically smallest eigenpairs; a step shrinks weights along those with negative values."""
        found = replace(self, mixing=-self.mixing).top_eigenpairs(k, tol=tol, seed=seed)
        return replace(found, values=-found.values)

    def to_scipy(self) -> LinearOperator:
        """Return a ``LinearOperator`` of ``scipy.sparse.linalg``, for NumPy vectors of any number type.

        Its products have the weight's dtype, or the corresponding complex dtype for a complex vector.
        """
        real = np.dtype(torch.finfo(self.dtype).dtype)

        def on(product: Callable[[Tensor], Tensor]) -> Callable[[np.ndarray], np.ndarray]:
            def of(given: np.ndarray) -> np.ndarray:  # a closure in which it stands itself would keep the network alive
                parts = (given.real, given.imag) if np.iscomplexobj(given) else (given,)  # the matrix is real
                # torch wants it writable and native
                own = (np.asarray(part).astype(real, order="C", casting="same_kind") for part in parts)
                found = [product(torch.from_numpy(part).to(self.device)).cpu().numpy() for part in own]
                return found[0] if len(found) == 1 else found[0] + 1j * found[1]

            return of

        return LinearOperator(
            self.shape,
            matvec=on(lambda v: self.matvec(v.reshape(-1))),
            rmatvec=on(lambda v: self.rmatvec(v.reshape(-1))),
            matmat=on(self.matmat),
            rmatmat=on(partial(self._columns, self.apply_transpose)),
            dtype=real,
        )

    def _columns(self, product: Callable[[Tensor], Tensor], matrix: Tensor) -> Tensor:
        require_floating(matrix=matrix)
        if matrix.ndim != 2 or matrix.shape[0] != self.shape[0] or not matrix.shape[1]:
            raise ValueError(f"matrix must be ({self.shape[0]}, k) with a column or more, got {tuple(matrix.shape)}")
        directions = torch.stack([unvec(column, self.opened.weight.shape) for column in matrix.T])
        return torch.stack([vec(out) for out in product(directions)], dim=1)

    # -- the three factors; fields on views are (..., N V, n_L) ---------------------------------------------------------

    def _pushed(self, u: Tensor) -> Tensor:
        """What a field on the views does to the weight, in its shape."""
        return self._held(self.opened.vjp(self._left(self._mix(self._right(u)))), u)

    def _held(self, products: Tensor, field: Tensor) -> Tensor:
        """Return the products; raise ValueError where their type can't hold them, unless a device would then wait."""
        return _held(products, field) if may_look(products) else products

    def _mix(self, u: Tensor, *, adjoint: bool = False) -> Tensor:
        if u.ndim == 3:  # a batch of k fields: the views' axis must come first
            mixed = self._mix(u.movedim(0, -1).flatten(1), adjoint=adjoint)
            return mixed.reshape(*u.shape[1:], len(u)).movedim(-1, 0)
        out: Tensor = self.mixing(u.unflatten(0, self.population), adjoint=adjoint).flatten(0, 1)
        return out

    def _scales(self) -> tuple[Tensor, Tensor]:
        norm = length(self.opened.output)
        return norm, self.opened.output / norm

    def _right(self, u: Tensor) -> Tensor:
        """Multiply by what stands right of the connection: ``1 / ||f||`` under normalisation."""
        return u / self._scales()[0] if self.normalize else u

    def _left(self, u: Tensor) -> Tensor:
        r"""Multiply by :math:`P^\perp_f / \|f\|` under normalisation."""
        if not self.normalize:
            return u
        norm, unit = self._scales()
        return project(unit, u) / norm


@with_gradients
def covariance_operator(
    net: nn.Module,
    layer: str | nn.Module,
    views: Tensor,
    *,
    loss: str | Loss = "simple",
    temperature: float | None = None,
    margin: float = 0.0,
    beta: float = 0.0,
    normalize: bool = False,
    clean: Tensor | None = None,
    of_gram: bool = False,
    chunk: int | None = None,
) -> CovarianceOperator:
    r"""Return the covariance operator of ``layer`` for a loss, on a population or on a batch of views.

    views: a tensor ``(N, V, ...)`` of V views of each of N samples.  For the losses of [tian2020] these samples are the
    population, and the views of a sample are equally likely:

    * ``"simple"`` gives :math:`V_x[\bar K_l]` (Theorem 3), or :math:`-\beta EV_l + VE_l` with ``beta`` (Corollary 1).
    * ``"soft_triplet"`` and ``"info_nce"`` give the main term :math:`\frac12 V^\xi_{x,x'}[\bar K_l(x) - \bar K_l(x')]`
      of Theorem 4 (H = 1).  They need ``temperature`` and ``clean``, the un-augmented samples ``(N, ...)``.  The
      weight :math:`\xi` of a pair of samples depends on the distance between their outputs before augmentation.

    For any other loss of inner products, ``views`` are one batch, and the operator is
    :math:`-2 \sum_{ab} \Gamma_{ab} K_a K_b^T` with :math:`\Gamma = \partial \ell / \partial G`
    (:func:`sslbook.operator.view_weights.gram_weights`).  It is symmetric and exact; gradients flow through all views.

    * The loss may be a name in :data:`sslbook.losses.batch.BATCH_LOSSES`, such as ``"info_nce"`` without ``clean``.
      Some of these losses need ``temperature``.
    * It may also be a function of the outputs ``(N, V, d)``, for any ``d``, or, with ``of_gram``, of their inner
      products ``(N V, N V)``.

    normalize: whether a loss of [tian2020] divides the network's output by its norm; the operator is then
    :math:`Cov_x[\overline{K^n P^\perp}, \bar K^n]` (Eq. 56).  Any other loss must do this itself if it needs it.
    chunk: the number of views in memory at once; each product then runs the network again.  ``None`` means all views.

    The network ``net`` must treat samples independently, and ``layer`` must be a linear or convolutional layer of it.
    A network in half precision is run in float32 with the same weights, and the operator's repr says so.
    Raises ValueError for ``views`` of another shape, and for an unknown loss or one that depends on more than inner
    products.  It also refuses a missing ``clean`` or ``temperature``, unused arguments, and numbers that aren't finite.
    """
    population = _population(views)
    loss = meant(loss, (*LOSSES, *BATCH_LOSSES))
    if isinstance(loss, str) and loss in BATCH_LOSSES and loss not in LOSSES:
        raise ValueError(
            f"loss={loss!r} has no such operator: it sees more than inner products (chapter operators_today); "
            "spectral_contrastive has one, and "
            "sslbook.operator.layer.open_layer(net, layer, x).vjp of its gradient in the outputs is the step of any loss"
        )
    if not callable(loss):
        require_one_of("loss", loss, LOSSES)
    of_batch = loss == "info_nce" and clean is None  # SimCLR's, and not that of the population
    if callable(loss) or loss not in PAIRED or of_batch:
        owner = f"loss={loss!r}" + " without clean" * of_batch
        refuse_unused(owner, margin=margin, beta=beta, normalize=normalize, clean=clean)
        if not callable(loss):
            refuse_unused(f"loss={loss!r}", of_gram=of_gram)
        value = _batch_loss(loss, temperature, of_gram)
        opened = open_views(net, layer, views, chunk)
        weights = gram_weights(value, opened.output.unflatten(0, population), of_gram=of_gram)
        name = loss if isinstance(loss, str) else name_of(loss)
        return CovarianceOperator(opened, population, PairMixing(-2 * weights), of=name)
    refuse_unused(f"loss={loss!r}", of_gram=of_gram)
    beta = require_number("beta", beta)
    if loss == "simple":
        refuse_unused("loss='simple'", temperature=temperature, margin=margin, clean=clean)
        opened, mixing = open_views(net, layer, views, chunk), Mixing(inter=1.0, intra=-beta)
    else:
        refuse_unused(f"loss={loss!r}", beta=beta, **({"margin": margin} if loss == "info_nce" else {}))
        if clean is None or temperature is None:
            raise ValueError(
                f"loss={loss!r} weighs pairs by the distance of un-augmented samples: give clean=(N, ...) and temperature"
            )
        _require_clean(clean, views)
        opened = open_views(net, layer, views, chunk)  # first: a network that couples samples must not see clean
        xi = pair_weights(net, clean, loss=loss, temperature=temperature, margin=margin, normalize=normalize)
        mixing = Mixing(weights=xi)
    if normalize:
        _require_lengths("view", opened.output)
    return CovarianceOperator(opened, population, mixing, normalize, of=loss)


def _batch_loss(loss: str | Loss, temperature: float | None, of_gram: bool) -> Loss:
    """The loss as a function of the outputs alone."""
    if not isinstance(loss, str):
        refuse_unused("a function as loss", temperature=temperature)
        return own_loss(loss, of_gram=of_gram)
    return partial(BATCH_LOSSES[loss].value, **({} if temperature is None else {"temperature": temperature}))


@with_gradients
def intra_operator(
    net: nn.Module, layer: str | nn.Module, views: Tensor, *, chunk: int | None = None
) -> CovarianceOperator:
    r"""Return :math:`EV_l = E_x V_{x' | x}[K_l(x')]`, the covariance *within* augmentations (Eq. 9).

    chunk: the number of views in memory at once, as in :func:`covariance_operator`.
    """
    population = _population(views)
    return CovarianceOperator(open_views(net, layer, views, chunk), population, Mixing(inter=0.0, intra=1.0))


@anywhere
@torch.no_grad()
def pair_weights(
    net: nn.Module, clean: Tensor, *, loss: str, temperature: float, margin: float = 0.0, normalize: bool = False
) -> Tensor:
    r""":math:`\xi(r(x_i, x_j))` of Eq. 6 for all pairs of un-augmented samples, ``(N, N)``."""
    net = copied(net)
    if has_half(net):
        net, clean = net.float(), in_full(clean)
    with beside(clean):
        output = net(clean).flatten(1)
    if normalize:
        _require_lengths("clean sample", output)
        output = output / length(output)
    distances = half_squared_distance(output[:, None], output[None, :])
    return pair_weight(distances, loss=loss, temperature=temperature, margin=margin)


def _require_clean(clean: Tensor, views: Tensor) -> None:
    """Raise TypeError for no dense tensor, and ValueError unless it is one more view of each sample, of finite numbers."""
    require_dense("clean", clean, "samples, ...")
    wanted, given = (f"{tuple(t.shape)} in {t.dtype} on {t.device.type}" for t in (views[:, 0], clean))
    if given != wanted:
        raise ValueError(f"clean must hold one sample for each row of views, and such as those: {wanted}, got {given}")
    refuse_nonfinite("clean", clean)


def _require_lengths(what: str, output: Tensor) -> None:
    """Raise ValueError where an output can't be divided by its norm."""
    if bool((output == 0).all(dim=1).any()):
        raise ValueError(f"normalize=True needs outputs that aren't zero: that of at least one {what} is (dead ReLUs?)")


def _population(views: Tensor) -> tuple[int, int]:
    require_dense("views", views, "samples, views, ...")
    if views.ndim < 3 or views.shape[0] < 1 or views.shape[1] < 1:
        raise ValueError(f"views must have shape (samples, views, ...), got {tuple(views.shape)}")
    return views.shape[0], views.shape[1]


# -- eigenpairs, from products alone --------------------------------------------------------------------------------------


def _dual_basis(op: CovarianceOperator, root: Mixing | PairMixing, k: int, tol: float, seed: int) -> Tensor:
    """``B u`` for the top eigenvectors ``u`` of ``B^T B``; any vector where the eigenvalue is zero."""
    shape = op.opened.output.shape

    def mix(u: Tensor) -> Tensor:
        return root(u.unflatten(0, op.population)).flatten(0, 1)

    def product(u: np.ndarray) -> np.ndarray:
        field = torch.as_tensor(u, dtype=op.dtype, device=op.device).reshape(shape)
        return mix(op.opened.kernel(mix(field))).reshape(-1).cpu().numpy()

    kind = np.dtype(torch.finfo(op.dtype).dtype)
    operator = LinearOperator((shape.numel(), shape.numel()), matvec=product, dtype=kind)
    columns = []
    for column in _lanczos(operator, k, tol, seed).T:
        field = torch.as_tensor(column, dtype=op.dtype, device=op.device).reshape(shape)
        columns.append(vec(op.opened.vjp(mix(field))))
    basis = torch.stack(columns, dim=1)
    length = basis.norm(dim=0)
    draw = torch.Generator().manual_seed(seed)
    spare = torch.randn(basis.shape, generator=draw, dtype=op.dtype).to(op.device)
    return torch.where(length > 1e-6 * length.max(), basis / length, spare / spare.norm(dim=0))


def _lanczos(operator: LinearOperator, k: int, tol: float, seed: int) -> np.ndarray:
    """Eigenvectors ``(n, k)`` of the ``k`` largest eigenvalues of a symmetric operator, largest first."""
    start = np.random.default_rng(seed).standard_normal(operator.shape[0]).astype(operator.dtype)
    if not _held(torch.as_tensor(operator.matvec(start))).any():  # a zero operator, on which ARPACK can't start
        return np.eye(operator.shape[0], k, dtype=operator.dtype)
    values, vectors = eigsh(operator, k=k, which="LA", tol=tol, v0=start)
    found: np.ndarray = vectors[:, np.argsort(values)[::-1]]
    return found


def _held(products: Tensor, field: Tensor | None = None) -> Tensor:
    """Products of an operator; raises ValueError where they overflow their type, or are so small that digits are lost.

    field: what they were made of; where it is so small that its squares vanish, products of 0 are none.
    """
    largest, dtype = float(products.abs().max()), products.dtype
    if not largest and field is not None and field.numel():
        largest = float(field.abs().max()) ** 2
    if largest and not torch.finfo(dtype).tiny < largest < math.inf:
        raise ValueError(
            f"net and views must have an operator whose products {torch.finfo(dtype).dtype} can hold, got some of size "
            f"{largest:.1g}; give them in float64, or scale the network's outputs"
        )
    return products


def relative_gap(value: Tensor, reference: Tensor) -> float:
    r"""Largest :math:`\|a_i - b_i\|` over the leading axis, divided by the largest :math:`\|b_i\|`; a vector counts as one item.

    The scale is the batch's, so that an item that is zero (a dead ReLU) doesn't turn rounding into an error of 100 %.
    Raises ValueError where the shapes differ.
    """
    if value.shape != reference.shape:
        raise ValueError(
            f"value and reference must have one shape, got {tuple(value.shape)} and {tuple(reference.shape)}"
        )
    a, b = (part.detach().reshape(len(part) if part.ndim > 1 else 1, -1) for part in (value, reference))
    return float((a - b).norm(dim=1).max() / b.norm(dim=1).max())
