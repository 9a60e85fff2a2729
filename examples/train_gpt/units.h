// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace thinwire::train_gpt {

/// Returns three digits and a decimal unit: "999 B", "58.3 KB", "5.60 MB".
[[nodiscard]] std::string format_bytes(double bytes);

/// Returns three digits: "950", "20.1k", "1.35M".
[[nodiscard]] std::string format_count(double count);

/// Returns "42 s", "3:07", "1:02:03" from seconds >= 0, rounded.
[[nodiscard]] std::string format_duration(double seconds);

}  // namespace thinwire::train_gpt
