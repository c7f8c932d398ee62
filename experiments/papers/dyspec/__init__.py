"""DySpec (Xiong et al. 2024): trees by draft probability, their size, their order and their cost."""
