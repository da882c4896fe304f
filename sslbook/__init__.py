"""sslbook: the library behind *What Survives Augmentation*, an executable book on self-supervised learning.

These names are public.  Each is loaded on first use, and the page "The library" of the book has an example of it.

The operator that training applies to a layer's weights, on your own network:
    covariance_operator  the covariance operator of a layer, applied without forming its matrix
    intra_operator       the covariance within augmentations
    CovarianceOperator   the result of both functions, with products, trace, leading eigenpairs and the update
    EigenPairs           leading eigenpairs, as directions of the weight, to plot, save and load
    compare              what one of two augmentations, or of two checkpoints, keeps that the other loses
    inspect_network      a report on all layers: spectra, and shares of the weights and of a step, with controls
    dose                 which planted features a training amplifies: by the amount or the share that survives

Losses:
    contrastive          the loss of a batch, from the embeddings of two views
    pair_distances       the distances of each anchor to its positive and to its negatives
    info_nce             SimCLR's loss, as a function of pair distances
    soft_triplet         the soft triplet loss, as a function of pair distances
    partials             the partial derivatives of a loss with respect to the distances

Networks:
    ResNet18             a ResNet-18 without its classifier, for images of 32 or 96 pixels
    mlp                  a multilayer perceptron without biases
    BatchNorm            BatchNorm with a mode for its mean and a mode for its deviation

Images:
    read_images          your own images, from an array, a folder of pictures or a PyTorch data set
    load_dataset         CIFAR-10, STL-10, MNIST or handwritten digits, from verified files
    Dataset              images as bytes, with their labels
    shifts               all translations of an image, as a finite set of views
    Pipeline             a random augmentation, with crops, mirror images, colour changes and blur
    random_view          one random view of each image in a batch, determined by a seed and a step

Training:
    pretrain             SimCLR or BYOL with your own images and your own network
    load_run             the backbone of a run, with its weights
    Settings             all settings of a run of the papers
    Networks             those of the settings that describe the networks
    train                a function that trains such a run, or resumes it after a stop

Evaluating features:
    embed                a network's features of a data set
    knn_accuracy         the accuracy of a vote of nearest neighbours
    linear_probe         the accuracy of a linear classifier
    effective_rank       how many directions the features use
    mean_cosine          how alike the features of different images are: 1 after a collapse

Latent trees, where every expectation is a finite sum:
    LatentTree           a tree of categorical variables, of which only the leaves are observed
    symmetric_binary     trees of binary variables with symmetric tables
    random_categorical   trees with any numbers of values and random tables
    initial_network      a tree-shaped ReLU network
    latent_correlations  the exact correlation of each unit with its latent variable
"""

from sslbook._check import offer

__version__ = "0.1.0"
__getattr__, __dir__ = offer(__name__, __file__)
