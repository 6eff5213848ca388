# Shared loop of the programs in this folder: reads a question from each line, and prints its answer.
package serve;

use strict;
use warnings;

sub integers { return map { ref $_ ? integers(@$_) : $_ } @_ }

sub serve {
    my (%verbs) = @_;
    $| = 1;
    while (my $line = <STDIN>) {
        my ($verb, @words) = split ' ', $line;
        my @reply = eval { $verbs{$verb}->(@words) };
        if (my $error = $@) {
            $error =~ s/\s+/ /g;
            print "! $error\n";
        } else {
            print join(' ', '=', integers(@reply)), "\n";
        }
    }
}

1;
