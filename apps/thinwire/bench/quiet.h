// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace thinwire::apps::bench {

/// Returns when everything else on this machine uses less than 8 % of one core
/// over 60 ms, or after a second. Returns false if that never happened, or if
/// the system does not say how busy it is.
[[nodiscard]] bool wait_until_quiet();

}  // namespace thinwire::apps::bench
