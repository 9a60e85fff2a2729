// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace thinwire::apps {

/// Prints what this machine and build have, and what would make them better.
void run_doctor();

}  // namespace thinwire::apps
