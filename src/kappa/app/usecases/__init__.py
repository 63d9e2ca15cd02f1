"""What people can ask of Kappa. The front ends are thin over these."""
