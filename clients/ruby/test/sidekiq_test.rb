# frozen_string_literal: true

require_relative "helper"
require "sidekiq"
require "sidekiq/testing"

# Job of the README, as it stands there.
class SidekiqTest < Test
  README = File.read(File.expand_path("../README.md", __dir__))
  CODE = README[/## Jobs of Sidekiq.*?```ruby\n(.*?)```/m, 1]

  test "denied job runs later" do
    Sidekiq::Testing.fake!
    delivered = []
    context = Module.new
    context.const_set(:LIMITER, limiter)
    context.const_set(:Mailer, Class.new { define_singleton_method(:deliver) { |account| delivered << account } })
    context.module_eval(CODE)
    job = context.const_get(:MailJob)
    11.times { job.perform_async(42) }
    began = Time.now.to_f
    # Runs each job that is in the queue now, but none that they add.
    Array.new(job.jobs.size) { job.perform_one }
    assert_equal [42] * 10, delivered
    (later,) = job.jobs
    assert_equal [42], later.fetch("args")
    assert_operator later.fetch("at"), :>, began
  end
end
