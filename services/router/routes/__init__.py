"""The public routes and their OpenAPI description."""
