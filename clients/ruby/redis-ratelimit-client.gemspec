# frozen_string_literal: true

require_relative "lib/redis_ratelimit/version"

Gem::Specification.new do |gem|
  gem.name = "redis-ratelimit-client"
  gem.version = RedisRatelimit::VERSION
  gem.license = "MIT"
  gem.authors = ["The redis-ratelimit authors"]
  gem.summary = "Rate limits in Redis and Valkey, decided by the redis-ratelimit module, and a store for Rack::Attack"
  gem.required_ruby_version = ">= 3.1"
  gem.files = Dir["lib/**/*.rb", "README.md", "CHANGELOG.md", "LICENSE"]
  gem.add_dependency "redis", ">= 4.8", "< 6"
end
