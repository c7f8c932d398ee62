"""DySpec (Xiong et al. 2024): size, row order and cost of trees built by draft probability."""
