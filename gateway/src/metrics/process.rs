//! Memory of the process, under the names that Prometheus' client libraries share.

use metrics::{describe_gauge, gauge};

/// Names of the metrics, with their HELP lines and the fields of `/proc/self/status`.
const SIZES: [(&str, &str, &str); 2] = [
    ("process_resident_memory_bytes", "Memory of the process in use, in bytes.", "VmRSS:"),
    ("process_virtual_memory_bytes", "Address space of the process, in bytes.", "VmSize:"),
];

/// Sets the HELP line of each metric.
pub fn describe() {
    for (name, help, _) in SIZES {
        describe_gauge!(name, help);
    }
}

/// Reads the current sizes and sets the metrics. Systems other than Linux have no such metrics.
pub fn record() {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    for (name, _, field) in SIZES {
        if let Some(size) = kibibytes(&status, field) {
            gauge!(name).set(f64::from(size) * 1024.0);
        }
    }
}

/// Returns the number in a field such as `VmRSS:     1234 kB`.
fn kibibytes(status: &str, field: &str) -> Option<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix(field))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::kibibytes;

    #[test]
    fn sizes_are_the_numbers_of_their_fields() {
        let status = "Name:\tratelimit\nVmSize:\t  20480 kB\nVmRSS:\t     12 kB\n";
        assert_eq!(
            [kibibytes(status, "VmRSS:"), kibibytes(status, "VmSize:"), kibibytes("", "VmRSS:")],
            [Some(12), Some(20480), None]
        );
    }
}
