"""Not there, as in a user's installation: lightning-fabric imports it where it finds it, for four seconds a process."""

raise ImportError("a package of the tests' environment, which hirl does not use")
