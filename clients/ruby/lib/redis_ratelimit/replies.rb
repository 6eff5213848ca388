# frozen_string_literal: true

module RedisRatelimit
  # Classification of the server's error replies: their cause, and a remedy. The packages for other languages have the
  # same table; `clients/replies.json` tests every package.
  module Replies
    PASSWORD = "give the connection its user and password, as in redis://user:password@host"
    NO_PASSWORD = "the server has no password for this user: leave it out of the URL"
    PERMISSION = "let the connection's user run this command on these keys, by ACL SETUSER"
    PROTECTED = "the server is in protected mode: give it a password"
    MODULE = "the redis-ratelimit module is not loaded: start the server with --loadmodule /path/to/libredis_ratelimit.so policies yes"
    TYPE = "the key was made by something else or under another algorithm: give the limit another key, or delete this one"
    TAG = "give the keys of one call one tag, as in {acme}:user and {acme}:all"
    CLUSTER = "this server is a node of a cluster: use a client for clusters"
    NO_CLUSTER = "this server is no cluster: use a client for one server"
    DATABASE = "choose another database in the URL"

    # Prefixes of replies, their causes and remedies. The first prefix that matches applies.
    TABLE = [
      ["LOADING ", :outage, ""],
      ["BUSY ", :outage, ""],
      ["MASTERDOWN ", :outage, ""],
      ["CLUSTERDOWN ", :outage, ""],
      ["TRYAGAIN ", :outage, ""],
      ["READONLY ", :outage, ""],
      ["REDIRECT ", :outage, ""],
      ["NOREPLICAS ", :outage, ""],
      ["MISCONF ", :outage, ""],
      ["UNBLOCKED ", :outage, ""],
      ["ERR max number of clients", :outage, ""],
      ["ERR internal error in module", :outage, ""],
      ["NOAUTH ", :operator, PASSWORD],
      ["WRONGPASS ", :operator, PASSWORD],
      ["ERR invalid password", :operator, PASSWORD],
      ["ERR AUTH ", :operator, NO_PASSWORD],
      ["ERR Client sent AUTH", :operator, NO_PASSWORD],
      ["NOPERM ", :operator, PERMISSION],
      ["DENIED ", :operator, PROTECTED],
      ["ERR unknown command", :operator, MODULE],
      ["WRONGTYPE ", :operator, TYPE],
      ["CROSSSLOT ", :operator, TAG],
      ["NOPOLICY ", :operator, "set it, by RL.POLICYSET"],
      ["MOVED ", :operator, CLUSTER],
      ["ASK ", :operator, CLUSTER],
      ["ERR This instance has cluster support disabled", :operator, NO_CLUSTER],
      ["ERR DB index is out of range", :operator, DATABASE],
      ["ERR invalid DB index", :operator, DATABASE],
      ["ERR SELECT is not allowed in cluster mode", :operator, DATABASE],
      ["ERR this server keeps policies only if", :operator, ""],
      ["ERR the policy was set by a later version", :operator, "update the module of this server"],
      ["ERR the policy already has the highest", :operator, ""],
      ["OOM ", :full, "give the server more memory, by maxmemory"],
      ["ERR the key has ", :full, ""],
      ["ERR there are ", :full, ""],
    ].freeze

    module_function

    # Returns the cause of an error reply, and a remedy. Unknown replies that begin with ERR are the module's errors
    # about malformed calls.
    def cause_of(reply)
      row = TABLE.find { |begins,| reply.start_with?(begins) }
      row ? row.drop(1) : [reply.start_with?("ERR ") ? :caller : :operator, ""]
    end

    # Returns an error reply as an error of this package, with its remedy.
    def explained(reply)
      kind, remedy = cause_of(reply)
      # The reply to an unknown command repeats the entire command, which does not help.
      text = remedy == MODULE ? "" : reply.delete_prefix("ERR ").delete_suffix(".")
      kinds = { outage: UnavailableError, caller: CallError, operator: SetupError, full: FullError }
      kind = reply.start_with?("NOPOLICY ") ? NoPolicyError : kinds.fetch(kind)
      kind.new([text, remedy].reject(&:empty?).join(": "))
    end

    # Returns true if a call was rejected for lack of room, and may pass without an idempotency key.
    def may_pass_without_id?(reply)
      reply.start_with?("OOM ") ||
        (reply.start_with?("ERR the key has ") && reply.include?(" entries, as many as ratelimit.max-ids "))
    end
  end
end
