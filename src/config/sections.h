// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "config/archive.h"
#include "thinwire/config/config.h"

/// The sections of a file that need more than a list of fields. Each takes the
/// file's top level and sets its part of the Config, on top of what
/// general_fields() and own_fields() have set.
namespace thinwire::config {

void read_optimizer(const Reader& file, Config& config);
/// Says in `notes` which keys have no effect, because their section is off.
void read_precision(const Reader& file, Config& config,
                    std::vector<KeyNote>& notes);
void read_schedule(const Reader& file, Config& config);

void write_optimizer(const Writer& file, const Writer& own,
                     const Config& config);
void write_precision(const Writer& file, const Writer& own,
                     const Config& config);
void write_schedule(const Writer& file, const Writer& own,
                    const Config& config);

}  // namespace thinwire::config
