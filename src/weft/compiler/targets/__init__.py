"""The machines that programs are made for, one folder each."""
