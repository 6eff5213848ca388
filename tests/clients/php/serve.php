<?php
// Shared loop of the programs in this folder: reads a question from each line, and prints its answer.

function integers($reply): array
{
    if (!is_array($reply)) {
        if (!is_int($reply)) {
            throw new Exception('not an integer: ' . json_encode($reply));
        }
        return [$reply];
    }
    return array_merge([], ...array_map('integers', array_values($reply)));
}

function serve(array $verbs): void
{
    while (($line = fgets(STDIN)) !== false) {
        $words = explode(' ', trim($line));
        $verb = array_shift($words);
        try {
            echo '= ' . implode(' ', integers($verbs[$verb](...$words))), "\n";
        } catch (Throwable $error) {
            echo '! ', get_class($error), ' ', preg_replace('/\s+/', ' ', $error->getMessage()), "\n";
        }
    }
}
