"""Found through the layer's folder."""

FROM_THE_LAYER = "yes"
