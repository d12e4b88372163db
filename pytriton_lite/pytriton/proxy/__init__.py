"""What PyTriton calls its proxy: here only the types that functions see."""
