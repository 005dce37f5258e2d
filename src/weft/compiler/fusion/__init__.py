"""Which nodes become one kernel, and how they read each other's elements."""
