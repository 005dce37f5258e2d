"""The engines that move data between processes, one file each, behind `weft.Communicator`."""
