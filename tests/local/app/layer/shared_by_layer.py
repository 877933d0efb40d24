"""Found through the layer's folder."""  # noqa: INP001 - as Lambda finds it

FROM_THE_LAYER = "yes"
