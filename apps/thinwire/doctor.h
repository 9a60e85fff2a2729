// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace thinwire::apps {

/// Prints what this machine and build have, and what would make them better. In
/// a job of several ranks it is collective: rank 0 prints its own report, who
/// is on which host, and one line for each difference. If the ranks cannot
/// reach each other, each prints its report, and an Error is thrown.
void run_doctor();

}  // namespace thinwire::apps
