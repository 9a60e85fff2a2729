// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/train_gpt/launch.h"
#include "apps/train_gpt/options/options.h"
#include "thinwire/comm/communicator.h"

namespace thinwire::train_gpt {

/// Trains as asked for, as one rank of `comm`'s. Collective. Rank 0 writes the
/// run's folder, its progress to stderr and its results to stdout.
///
/// kFailedElsewhere: another rank has thrown AgreedFailure, and all end. Throws
/// Error(kCommFailure) if a rank is lost on the way.
[[nodiscard]] Ending train(const Options& options, comm::Communicator& comm);

}  // namespace thinwire::train_gpt
