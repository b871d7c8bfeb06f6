"""Schedule: fire each occurrence of a recurring work once in the fleet."""
