"""Views of images: crops, colours, blur, and the pipelines that string them together."""
