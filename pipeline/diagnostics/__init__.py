"""Where and why a model is wrong: one noun a file, and the page that shows them.

    python run.py stage=diagnose run=runs/sts/NAME
"""
