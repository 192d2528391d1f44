"""What is measured, as values, tables and sentences: evaluation makes them, the model card shows them."""
