r"""The covariance operator as an operator: products with it, never its matrix.

On a finite population of ``N`` samples with ``V`` equally likely views each, every operator of Section 4 of [tian2020]
has the form

    OP = sum_{a,b} C_ab  L_a R_b^T,      a, b over the N V views,

with connections :math:`R_a = K_l(x_a)` (and :math:`L_a = R_a`, except under l2 normalisation, where
:math:`R_a = K_a / \|f_a\|` and :math:`L_a = R_a P^\perp_{f_a}`), and a matrix ``C`` on the views that is a few means and
differences (:class:`~sslbook.operator.view_weights.Mixing`).  So ``OP v`` is one JVP, one mixing, one VJP.  The ``N V`` forward
passes happen once.

Which ``C`` it is, :func:`covariance_operator` takes from the loss: that of Theorem 3, Corollary 1 and Eq. 56, that of Theorem 4, or
that of any loss of inner products (chapter operators_today).  :func:`intra_operator` is :math:`EV_l` alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from scipy.sparse.linalg import LinearOperator
from torch import Tensor, nn

from sslbook._ambient import anywhere, default_device_of, methods_anywhere, warn, with_gradients
from sslbook._check import counted, require_one_of, require_whole
from sslbook.losses.batch import LOSSES
from sslbook.losses.pairs import half_squared_distance, pair_weight
from sslbook.operator.eigen import EigenPairs, Estimate, lanczos
from sslbook.operator.frozen import frozen, in_full
from sslbook.operator.layer import OpenedLayer, numbers, open_layer, unvec, vec
from sslbook.operator.view_weights import Loss, Mixing, PairMixing, gram_weights, is_symmetric


@methods_anywhere
@dataclass(frozen=True, eq=False)
class CovarianceOperator:
    r"""This is the operator ``OP_l`` of one layer on a fixed population of views.

    :func:`covariance_operator` and :func:`intra_operator` create it.  opened: the layer, with its inputs and
    the network's outputs for all views.  population: the pair ``(N, V)``.  mixing: the weight of each pair of views, ``C``.
    of: the name of the loss.  normalize: whether the output is l2-normalised (Eq. 56), which makes the operator a cross-covariance.

    Of these it has its ``shape``, ``(size, size)`` with as many rows as the layer has weights; the ``dtype`` and the ``device`` of
    the weight; and ``symmetric``, whether it equals its transpose by construction.

    Directions have the weight's shape, dtype and device; vectors have the order of :func:`sslbook.operator.layer.vec`.
    ``op @ v`` is the product with a vector ``(size,)``, and ``op @ V`` that with each column of ``(size, k)``, of torch or NumPy.

    >>> import sslbook
    >>> op = sslbook.covariance_operator(sslbook.mlp((4, 5, 2)), "0", torch.arange(48.0).double().reshape(4, 3, 4).sin())
    >>> op
    CovarianceOperator(layer '0' (5 x 4 weights), 4 samples x 3 views, loss simple, symmetric, torch.float64, cpu)
    >>> step = torch.ones(5, 4, dtype=torch.float64)
    >>> bool((vec(op.apply(step)) - op @ vec(step)).abs().max() + (op.dense() - op @ torch.eye(20)).abs().max() < 1e-12)
    True
    """

    opened: OpenedLayer
    population: tuple[int, int]
    mixing: Mixing | PairMixing
    normalize: bool = False
    of: str = "simple"
    shape: tuple[int, int] = field(init=False)
    dtype: torch.dtype = field(init=False)
    device: torch.device = field(init=False)
    symmetric: bool = field(init=False)
    _norm: Tensor | None = field(init=False)  # of each view's output, (B, 1), under normalisation

    def __post_init__(self) -> None:
        """Work out what follows from the fields; raises ValueError where an output has no direction to be normalised to."""
        weight, output = self.opened.weight, self.opened.output
        matrix = self.mixing.matrix if isinstance(self.mixing, PairMixing) else self.mixing.weights
        symmetric = not self.normalize and is_symmetric(matrix)
        vars(self).update(shape=(weight.numel(), weight.numel()), dtype=weight.dtype, device=weight.device)
        vars(self).update(symmetric=symmetric, _norm=lengths("view", output) if self.normalize else None)

    def __repr__(self) -> str:
        (n, v), shape = self.population, " x ".join(map(str, self.opened.weight.shape))
        kind = "symmetric" if self.symmetric else "not symmetric"
        place = f"layer {self.opened.name!r} ({shape} weights), {counted(n, 'sample')} x {counted(v, 'view')}"
        given = "" if self.opened.given == self.dtype else f" of weights given in {self.opened.given}"
        return f"CovarianceOperator({place}, loss {self.of}, {kind}, {self.dtype}{given}, {self.device})"

    def apply(self, direction: Tensor, *, transposed: bool = False) -> Tensor:
        r"""Apply ``OP`` to one direction in the weight's shape, or to several, ``(k, *shape)``; the result has the same shape.

        It costs one JVP, one mixing of the views, and one VJP, through the network above the layer.  transposed: apply
        :math:`OP^T` instead.  With :math:`OP = K M K^T` this is :math:`K M^T K^T`: the views alone are mixed otherwise.
        """
        return self.opened.vjp(self._mixed(self.opened.jvp(direction), transposed=transposed))

    def matvec(self, vectors: Tensor | np.ndarray, *, transposed: bool = False) -> Tensor:
        r"""Return ``OP v``, or ``OP^T v`` if ``transposed``, for ``v (size,)``; also written ``op @ v``.

        The order is that of :func:`sslbook.operator.layer.vec`, and what is given is taken in the weight's dtype, on its device.
        Several vectors are the columns of ``(size, k)``, which go through the network in one batched pass.
        """
        given, shape = torch.as_tensor(vectors).to(self.opened.weight), self.opened.weight.shape
        if given.ndim == 1:
            return vec(self.apply(unvec(given, shape), transposed=transposed))
        directions = torch.stack([unvec(column, shape) for column in given.T])
        return torch.stack([vec(found) for found in self.apply(directions, transposed=transposed)], dim=1)

    __matmul__ = matvec

    def update(self) -> Tensor:
        r"""Return ``OP vec(W)`` in the weight's shape, the paper's update (Eq. 3) for outputs of degree 1 in the layer.

        Warns if the step differs by more than 1 % (rounding is far below) because of a bias, a parallel path or a degree other
        than 1; then use :meth:`exact_update`.
        """
        linear = self.opened.jvp(self.opened.weight)
        if (gap := relative_gap(linear, self.opened.output)) > 0.01:
            why = f"a bias, a parallel path or another degree than 1 makes them differ by {gap:.0%}"
            warn(f"the outputs aren't K^T vec(W) of layer {self.opened.name!r}: {why}; exact_update() is the step")
        return self.opened.vjp(self._mixed(linear))

    def exact_update(self) -> Tensor:
        r"""Return the layer's step in *any* network, :math:`\mathrm{Cov}_x[\bar K_l, \bar f_L]`.

        This is minus the gradient in the layer's weight as a free parameter.  Where training moves other numbers, because
        the weight is pruned or computed (``weight_norm``, ``parametrize``), its step is the image of this one in them.
        The result has the weight's shape, and no step size in it: one of gradient descent at the rate ``a`` adds ``a`` times it.
        Under normalisation (Eq. 56) the outputs in it are divided by their norms, and what only lengthens an output is no part of
        the step.
        It equals :meth:`update` where :math:`K_l^T vec(W_l) = f_L`, which a bias, a parallel path or a degree other than 1
        violates; :meth:`euler_gap` measures by how much.
        """
        return self.opened.vjp(self._mixed(self.opened.output))

    def euler_gap(self) -> float:
        r"""Return the largest :math:`\|K_l^T vec(W_l) - f_L\| / \max \|f_L\|` over the population.

        It is 0 where Theorem 1 applies, and where both sides are zero, as with a head that starts at zero.
        """
        linear, output = self.opened.jvp(self.opened.weight), self.opened.output
        return relative_gap(linear, output) if bool(linear.any() | output.any()) else 0.0

    def trace(self, samples: int | None = None, *, seed: int = 0) -> Estimate:
        r"""Return the trace: exactly, or estimated from about as many products as ``samples`` says, with its standard error.

        The exact trace takes one output ``o`` at a time, which costs a product or more for each output of the network: a minute
        where there are hundreds.  It is :math:`\sum_{ab} C_{ab} \sum_o \langle L_a e_o, R_b e_o \rangle`.  In a linear layer
        :math:`K_a = f_a \otimes J_a^T`, so that an inner product of connections is one of inputs times one of Jacobians: where
        it has more weights than views, these are taken, and ``(N V)^2`` numbers stored; otherwise ``N V size``.

        The estimate is Hutch++ [meyer2021]: exact in the span of products with a third of the samples, which holds most of an
        operator with few large eigenvalues, and beside it the mean of :math:`z^T OP z` of random signs.  It is unbiased, and
        ``.error`` is the standard error of that mean.

        >>> import sslbook
        >>> views = torch.linspace(-1, 1, 4800, dtype=torch.float64).reshape(40, 3, 40).sin()
        >>> op = sslbook.covariance_operator(sslbook.mlp((40, 30, 8)), "0", views)
        >>> guess = op.trace(samples=30)
        >>> abs(guess - op.trace()) < 4 * guess.error + 1e-9 * guess
        True
        """
        opened, below = self.opened, self.opened.below
        if samples is not None and samples < self.shape[0]:
            return self._estimated_trace(samples, seed)
        by_views = isinstance(opened.module, nn.Linear) and below.ndim == 2 and len(below) <= self.shape[0]
        gradients = opened.pulled_back if by_views else opened.sample_gradients
        total = gram = torch.zeros((), dtype=torch.float64, device=self.device)
        for rows in opened.units():
            right = gradients(self._scaled(rows)).double()
            left = gradients(self._scaled(rows, tangential=True)).double() if self.normalize else right
            if by_views:
                gram = gram + right @ left.T
            else:
                total = total + (left * self.mixing(right.unflatten(0, self.population)).flatten(0, 1)).sum()
        if by_views:
            products = gram * (below.double() @ below.double().T)
            total = self.mixing(products.unflatten(0, self.population)).flatten(0, 1).diagonal().sum()
        return Estimate(float(total))

    def _estimated_trace(self, samples: int, seed: int) -> Estimate:
        """Hutch++ of :meth:`trace`: a third of the samples spans, a third measures that span, and a third what is beside it."""
        third, random, opened = samples // 3, torch.Generator().manual_seed(seed), self.opened
        signs = 2.0 * torch.randint(0, 2, (samples - third, self.shape[0]), generator=random).to(self.device) - 1
        spanning = [self.matvec(sign).double() for sign in signs[:third]]
        span = torch.linalg.qr(torch.stack(spanning, dim=1))[0]
        rest = [sign - span @ (span.T @ sign) for sign in signs[third:].double()]
        found = []
        for vector in [*span.T, *rest]:
            field = opened.jvp(unvec(vector.to(self.dtype), opened.weight.shape))
            found.append(float((field.double() * self._mixed(field).double()).sum()))
        beside = torch.tensor(found[third:], dtype=torch.float64)
        return Estimate(sum(found[:third]) + float(beside.mean()), float(beside.std() / len(rest) ** 0.5))

    def dense(self) -> Tensor:
        """Return the matrix ``(size, size)``, from the connection of each view, for small layers and as a reference."""
        fields = self.opened.connections().movedim(1, 0)  # a direction is one weight: (size, B, n_L)
        return torch.einsum("nbo,mbo->nm", fields, self._mixed(fields))

    def top_eigenpairs(self, k: int = 5, *, tol: float = 1e-9, seed: int = 0) -> EigenPairs:
        r"""Return the ``k`` algebraically largest eigenpairs of a symmetric operator.

        Lanczos' method (ARPACK) finds them up to ``tol``, at least a few units of rounding.  If ``C`` is positive and
        ``N V n_L`` is below the number of weights, it uses :math:`B^T B`, where :math:`OP = B B^T`, :math:`B = K C^{1/2}`.  For
        at most ``4 k + 32`` weights, the matrix is formed.  Whichever way the eigenvectors are found, what is returned are the
        best pairs in their span (Rayleigh and Ritz), in float64, since single-precision sums over a million weights lose three
        digits.  Raises ValueError if the operator isn't symmetric or ``k`` is outside ``1 .. size``.
        """
        opened, size = self.opened, self.shape[0]
        if not self.symmetric:
            raise ValueError("eigenpairs are for symmetric operators; for others use to_scipy() and scipy's eigs")
        k = require_whole("k", k, least=1, most=size)
        few, tol = 4 * k + 32, max(tol, 4 * torch.finfo(self.dtype).eps)
        root = self.mixing.root(*self.population) if few < opened.output.numel() < size else None
        if size <= few:
            basis = torch.linalg.eigh(self.dense())[1].flip(1)[:, :k]
        elif opened.copies == len(opened.weight) > 1:
            basis = self._of_one_output(k, tol, seed)
        elif root is not None:
            basis = self._through_views(root, k, tol, seed)
        else:
            basis = lanczos(self.matvec, opened.weight, k, tol=tol, seed=seed)

        basis = torch.linalg.qr(basis.double())[0]
        image = self.matvec(basis).double()
        small = basis.T @ image
        values, turn = (part.flip(-1) for part in torch.linalg.eigh(0.5 * (small + small.T)))
        vectors = basis @ turn
        residuals = (image @ turn - vectors * values).norm(dim=0) / values.abs().clamp_min(torch.finfo(self.dtype).tiny)
        values, vectors, residuals = (part.to(self.dtype) for part in (values, vectors, residuals))
        return EigenPairs(values, vectors, residuals, tuple(opened.weight.shape), opened.copies)

    def bottom_eigenpairs(self, k: int = 5, *, tol: float = 1e-9, seed: int = 0) -> EigenPairs:
        """Return the ``k`` algebraically smallest eigenpairs; a step shrinks weights along those with negative values."""
        c = self.mixing
        opposite = PairMixing(-c.matrix) if isinstance(c, PairMixing) else Mixing(-c.inter, -c.intra, c.weights)
        found = replace(self, mixing=opposite).top_eigenpairs(k, tol=tol, seed=seed)
        return replace(found, values=-found.values)

    def to_scipy(self) -> LinearOperator:
        """Return a ``LinearOperator`` of ``scipy.sparse.linalg``, for real NumPy vectors; its products have the weight's dtype.

        SciPy's solvers take it: ``eigs`` for an operator that isn't symmetric, ``svds``, which multiplies with the transpose, too.
        """
        real = np.dtype(torch.finfo(self.dtype).dtype)

        def multiply(given: np.ndarray, transposed: bool = False) -> np.ndarray:
            return self.matvec(given.astype("f8"), transposed=transposed).cpu().numpy()

        adjoint = partial(multiply, transposed=True)
        return LinearOperator(self.shape, multiply, adjoint, multiply, real, adjoint)

    def _mixed(self, u: Tensor, *, transposed: bool = False) -> Tensor:
        r"""Apply what stands between the connections, ``M`` of ``OP = K M K^T``, to a field ``(B, n_L)``, or ``(k, B, n_L)``.

        It is ``C``; under normalisation :math:`M_{ab} = C_{ab} P^\perp_{f_a} / (\|f_a\| \|f_b\|)` (Eq. 56), since a step along an
        output moves no direction.  transposed: ``M^T``.
        """
        u = self._scaled(u, tangential=transposed)
        mixed: Tensor = self.mixing(u.movedim(-2, 0).unflatten(0, self.population), transposed=transposed)
        return self._scaled(mixed.flatten(0, 1).movedim(0, -2), tangential=not transposed)

    def _scaled(self, u: Tensor, *, tangential: bool = False) -> Tensor:
        r"""Under normalisation a field divided by the outputs' norms, first without its part along them if ``tangential``."""
        if self._norm is None:
            return u
        if tangential:
            unit = self.opened.output / self._norm
            u = u - (u * unit).sum(-1, keepdim=True) * unit
        return u / self._norm

    def _of_one_output(self, k: int, tol: float, seed: int) -> Tensor:
        r"""The ``k`` leading eigenvectors where :math:`OP = A \otimes 1`, in a last layer: those of ``A``, once for each output.

        Lanczos' method on the whole would miss some of these copies, and find lesser eigenvectors in their place.
        """
        weight, copies = self.opened.weight, len(self.opened.weight)
        count, inputs = -(-k // copies), weight[0].numel()

        def product(row: Tensor) -> Tensor:
            only = torch.zeros_like(weight)
            only[0] = row.view_as(weight[0])
            return self.apply(only)[0].flatten()

        if inputs <= 4 * count + 32:
            columns = [product(row) for row in torch.eye(inputs).to(weight)]
            rows = torch.linalg.eigh(torch.stack(columns))[1].flip(1)[:, :count]
        else:
            rows = lanczos(product, weight[0], count, tol=tol, seed=seed)
        return torch.einsum("ig,cd->icgd", rows, torch.eye(copies).to(rows)).flatten(2).flatten(0, 1)[:, :k]

    def _through_views(self, root: Mixing | PairMixing, k: int, tol: float, seed: int) -> Tensor:
        r"""The ``k`` leading eigenvectors, ``(size, k)``, as :math:`B u` of those of :math:`B^T B`, which are fields on the views.

        root: :math:`C^{1/2}`.  A product with :math:`B^T B = C^{1/2} K^T K C^{1/2}` is one with the layer's tangent kernel
        :math:`K^T K`.  Where an eigenvalue is zero, so is :math:`B u`, and any direction will do: one at random.
        """
        opened, kernel = self.opened, self.opened.kernel()

        def half(u: Tensor) -> Tensor:
            return root(u.reshape(*self.population, -1)).flatten(0, 1)

        fields = lanczos(lambda u: half(kernel(half(u))).flatten(), opened.output, k, tol=tol, seed=seed)
        basis = torch.stack([vec(opened.vjp(half(field))) for field in fields.T], dim=1)
        length = basis.norm(dim=0)
        draw = torch.Generator().manual_seed(seed)
        other = torch.randn(basis.shape, generator=draw, dtype=self.dtype).to(self.device)
        return torch.where(length > 1e-6 * length.max(), basis / length, other)


@with_gradients
def covariance_operator(
    net: nn.Module,
    layer: str | nn.Module,
    views: Tensor | np.ndarray,
    *,
    loss: str | Loss = "simple",
    temperature: float | None = None,
    margin: float = 0.0,
    beta: float = 0.0,
    normalize: bool = False,
    clean: Tensor | np.ndarray | None = None,
    of_gram: bool = False,
) -> CovarianceOperator:
    r"""Return the covariance operator of ``layer`` for a loss, on a population or on a batch of views.

    views: ``(N, V, ...)``, V views of each of N samples, a tensor or a NumPy array, whose floating numbers are taken in the
    layer's dtype.  A batch of images alone has no axis of views: ``images[:, None]`` is one view each, over which nothing is
    averaged, which is a warning.  For the losses of [tian2020] these samples are the population, and the views of a sample are
    equally likely:

    * ``"simple"`` gives :math:`V_x[\bar K_l]` (Theorem 3), or :math:`-\beta EV_l + VE_l` with ``beta`` (Corollary 1).
    * ``"soft_triplet"`` and ``"info_nce"`` give the main term :math:`\frac12 V^\xi_{x,x'}[\bar K_l(x) - \bar K_l(x')]`
      of Theorem 4 (H = 1).  They need ``temperature`` and ``clean``, the un-augmented samples ``(N, ...)``.  The
      weight :math:`\xi` of a pair of samples depends on the distance between their outputs before augmentation.

    For any other loss of inner products, ``views`` are one batch, and the operator is
    :math:`-2 \sum_{ab} \Gamma_{ab} K_a K_b^T` with :math:`\Gamma = \partial \ell / \partial G`
    (:func:`sslbook.operator.view_weights.gram_weights`).  It is symmetric and exact; gradients flow through all views.

    * The loss may be a name in :data:`sslbook.losses.batch.LOSSES`, such as ``"info_nce"`` without ``clean``.
      Some of these losses need ``temperature``.
    * It may also be a function of the outputs ``(N, V, d)``, for any ``d``, or, with ``of_gram``, of their inner
      products ``(N V, N V)``.  ``functools.partial(loss, temperature=0.5)`` gives it its arguments.

    normalize: whether a loss of [tian2020] divides the network's output by its norm; the operator is then
    :math:`Cov_x[\overline{K^n P^\perp}, \bar K^n]` (Eq. 56).  Any other loss must do this itself if it needs it.

    The network ``net`` must treat samples independently, and ``layer`` must be a linear or convolutional layer of it.
    A network in half precision is run in float32 with the same weights, and the operator's repr says so.  Under ``weight_norm``,
    or another parametrisation, the weight is the effective one: eigenvectors and steps are in it, and not in ``g`` and ``v``.
    Raises ValueError or TypeError for ``views`` of another shape, for an unknown loss or one that depends on more than inner
    products, and for an argument that the loss needs or has no use for.

    >>> import sslbook
    >>> net = sslbook.mlp((4, 5, 2))
    >>> views = torch.linspace(-1, 1, 48, dtype=torch.float64).reshape(4, 3, 4).sin()
    >>> sslbook.covariance_operator(net, "0", views).top_eigenpairs(2).directions().shape
    torch.Size([2, 5, 4])
    >>> sslbook.covariance_operator(net, "2", views, loss="info_nce", temperature=0.5).exact_update().shape
    torch.Size([2, 5])
    """
    takes: tuple[str, ...] = ("of_gram",)
    if isinstance(loss, str):
        require_one_of("loss", loss, [name for name in LOSSES if name not in ("exact", "quadratic")])
        takes = ("temperature", "of_gram")
        if loss == "simple":
            takes = ("beta", "normalize")
        elif loss == "soft_triplet" or (loss == "info_nce" and clean is not None):
            takes = ("clean", "temperature", "normalize", *["margin"] * (loss == "soft_triplet"))
    given: dict[str, Any] = {"margin": margin or None, "beta": beta or None, "normalize": normalize or None}
    given |= {"of_gram": of_gram or None, "temperature": temperature, "clean": clean}
    if unused := [name for name, value in given.items() if value is not None and name not in takes]:
        raise ValueError(f"loss={loss!r:.60} has no use for {' and '.join(unused)}")

    seen, samples = numbers(net, layer, views), numbers(net, layer, clean)
    population = (seen.shape[0], seen.shape[1])
    if "normalize" in takes and population[1] == 1:
        warn("views hold one view of each sample: nothing varies within a sample, and no augmentation is averaged over")
    opened = open_layer(net, layer, seen.flatten(0, 1))  # before clean: a network that couples samples must not see it
    if loss == "simple":
        return CovarianceOperator(opened, population, Mixing(inter=1.0, intra=-beta), normalize)
    if isinstance(loss, str) and "clean" in takes:
        if samples is None or len(samples) != len(seen):
            raise ValueError(f"clean must hold one sample for each of the {len(seen)} rows of views")
        xi = pair_weights(net, samples, loss=loss, temperature=temperature, margin=margin, normalize=normalize)
        return CovarianceOperator(opened, population, Mixing(weights=xi), normalize, of=loss)
    value: Any = loss
    if isinstance(loss, str):
        value = partial(LOSSES[loss], **({} if temperature is None else {"temperature": temperature}))
    name = loss if isinstance(loss, str) else getattr(getattr(loss, "func", loss), "__name__", type(loss).__name__)
    weights = gram_weights(value, opened.output.unflatten(0, population), of_gram=of_gram)
    return CovarianceOperator(opened, population, PairMixing(-2 * weights), of=name)


def intra_operator(net: nn.Module, layer: str | nn.Module, views: Tensor | np.ndarray) -> CovarianceOperator:
    r"""Return :math:`EV_l = E_x V_{x' | x}[K_l(x')]`, the covariance *within* augmentations (Eq. 9).

    net, layer and views, ``(N, V, ...)``: as in :func:`covariance_operator`.  What a step of the simple loss keeps is
    :math:`V_x[\bar K_l]`; this is what averaging over the views takes away from the covariance of all views.

    >>> import sslbook
    >>> net, sample = sslbook.mlp((4, 5, 2)), torch.linspace(-1, 1, 16, dtype=torch.float64).reshape(4, 1, 4)
    >>> sslbook.intra_operator(net, "0", sample.expand(4, 3, 4)).trace() < 1e-14  # three views that are alike
    True
    """
    return replace(covariance_operator(net, layer, views), mixing=Mixing(inter=0.0, intra=1.0))


@anywhere
@torch.no_grad()
def pair_weights(
    net: nn.Module, clean: Tensor, *, loss: str, temperature: float | None, margin: float = 0.0, normalize: bool = False
) -> Tensor:
    r"""Return :math:`\xi(r(x_i, x_j))` of Eq. 6 for all pairs of un-augmented samples, ``(N, N)``.

    clean: ``(N, ...)``.  The distance is that of the network's outputs, :math:`r = \|f_L(x_i) - f_L(x_j)\|^2 / 2`, divided by their
    norms with ``normalize``.  loss, temperature, margin: as in :func:`sslbook.losses.pairs.pair_weight`.
    """
    with default_device_of(clean):
        output = frozen(net)(in_full(clean)).flatten(1)
    if normalize:
        output = output / lengths("clean sample", output)
    distances = half_squared_distance(output[:, None], output[None, :])
    return pair_weight(distances, loss=loss, temperature=temperature, margin=margin)


def lengths(what: str, output: Tensor) -> Tensor:
    """Return the norms of outputs ``(..., n_L)``, as ``(..., 1)``; the squares are summed in float64, which they fit.

    Raises ValueError for one that is zero, as of dead ReLUs: it has no direction to be normalised to.
    """
    norm: Tensor = torch.linalg.vector_norm(output, dim=-1, keepdim=True, dtype=torch.float64).to(output)
    if not bool(norm.all()):
        raise ValueError(f"normalize=True needs outputs that aren't zero: that of at least one {what} is (dead ReLUs?)")
    return norm


def relative_gap(value: Tensor, reference: Tensor) -> float:
    r"""Return the largest :math:`\|a_i - b_i\|` over the leading axis, divided by the largest :math:`\|b_i\|`.

    A vector counts as one item.  The scale is the batch's, so that an item that is zero (a dead ReLU) doesn't turn rounding into
    an error of 100 %.

    >>> relative_gap(torch.tensor([[3.0, 4.0], [0.0, 1.0]]), torch.tensor([[3.0, 4.0], [0.0, 0.0]]))  # off by 1, of 5
    0.2...
    >>> relative_gap(torch.tensor(3.0), torch.tensor(2.0))
    0.5
    """
    a, b = (part.detach().reshape(len(part) if part.ndim > 1 else 1, -1) for part in (value, reference))
    return float((a - b).norm(dim=1).max() / b.norm(dim=1).max())
