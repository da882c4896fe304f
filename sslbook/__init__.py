"""sslbook: the library behind *What Survives Augmentation*, an executable book on self-supervised learning.

These names are promised; each is loaded when it is first used, and the page "The library" of the book shows it at work.

The operator that training applies to a layer's weights, on your own network:
    covariance_operator  the covariance operator of a layer, applied without ever being formed
    intra_operator       the covariance within augmentations, which it would have to lose
    CovarianceOperator   what both give: products, trace, leading eigenpairs, the update
    inspect_network      a report on all layers: spectra, shares of weights and of a step, each beside controls

Losses:
    contrastive          the loss of a batch of two views' embeddings
    pair_distances       distances of each anchor to its positive and its negatives
    info_nce             SimCLR's loss, of pair distances
    soft_triplet         the soft triplet loss, of pair distances
    partials             a loss's derivative by each distance

Networks:
    ResNet18             without its classifier, for images of 32 and of 96 pixels
    mlp                  a multilayer perceptron without biases
    BatchNorm            BatchNorm taken apart: a mode for its mean and one for its deviation

Images:
    read_images          your own, from an array, a folder of pictures or a torch data set
    load_dataset         CIFAR-10, STL-10, MNIST or handwritten digits, checked
    Dataset              images as bytes, with their labels
    shifts               all translations of an image: an augmentation as a finite set of views
    Pipeline             a random augmentation: crops, mirror images, colours, blur
    random_view          one view of each image of a batch by it, a function of a seed and a step

Training:
    pretrain             SimCLR or BYOL with your own images and your own network
    load_run             the backbone of a run, with its weights
    Settings             everything that a run of the papers depends on
    Networks             its part about the networks
    train                makes such a run, and goes on where it was stopped

What features are worth:
    embed                a network's features of a data set
    knn_accuracy         accuracy of a vote of nearest neighbours
    linear_probe         accuracy of a linear classifier
    effective_rank       how many directions features use

Latent trees, where every expectation is a finite sum:
    LatentTree           a tree of categorical variables, of which only the leaves are seen
    symmetric_binary     the kind with two values and no preference
    random_categorical   the kind with any number of values and tables drawn at random
    initial_network      the tree-shaped ReLU network
    latent_correlations  each unit's exact correlation with its latent variable

Numbers of the book:
    recorded             a recorded run, with where it comes from
"""

from sslbook.exports import offer

__version__ = "0.1.0"
__getattr__, __dir__ = offer(__name__, __file__)
