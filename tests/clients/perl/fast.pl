# Redis::Fast, as docs/clients.md shows it; tests/support/libraries.py describes the questions.

use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use serve;

# [one server]
use Redis::Fast;

# [end]
my ($mode, $port) = @ARGV;

# [one server]
my $redis = Redis::Fast->new(server => "127.0.0.1:$port", reconnect => 60);
# [end]

if ($mode eq 'server') {
    # [one server]
    my $fixed = 'RL.FIXED'; # a method's name, which Perl cannot read with a dot in it
    my ($allowed, $limit, $remaining, $wait_ms, $reset_ms) = $redis->$fixed('user:42', 100, '1m');
    # [end]
    serve::serve(
        first => sub { ($allowed, $limit, $remaining, $wait_ms, $reset_ms) },
        call => sub { my ($name, @words) = @_; $redis->$name(@words) },
    );
} elsif ($mode eq 'server-no-resends') {
    # [never twice]
    my $redis = Redis::Fast->new(server => "127.0.0.1:$port");
    # [end]
    serve::serve(
        call => sub {
            my ($name, @words) = @_;
            my @reply = eval { $redis->$name(@words) };
            my $error = $@ or return @reply;
            $redis = Redis::Fast->new(server => "127.0.0.1:$port");
            die $error;
        },
    );
} else {
    if ($mode eq 'cluster-no-resends') {
        $redis = Redis::Fast->new(server => "127.0.0.1:$port");
    }
    my ($fixed, $mtake) = ('RL.FIXED', 'RL.MTAKE');
    serve::serve(
        one => sub {
            my ($key) = @_;
            my @reply = eval { $redis->$fixed($key, 100, '1m') };
            my $error = $@ or return @reply;
            $redis = Redis::Fast->new(server => "127.0.0.1:$port") if $mode eq 'cluster-no-resends';
            die $error;
        },
        several => sub {
            my ($tag) = @_;
            $redis->$mtake(2, "{$tag}:minute", "{$tag}:day", qw(FIXED 100 1m FIXED 5000 1d));
        },
        pipeline => sub {
            my @replies;
            # [one server]
            for my $key (@_) {
                $redis->$fixed($key, 100, '1m', sub { my ($reply, $error) = @_; push @replies, $reply // die $error });
            }
            $redis->wait_all_responses;
            # [end]
            @replies;
        },
    );
}
