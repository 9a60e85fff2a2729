// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "thinwire/comm/communicator.h"
#include "thinwire/config/semantics.h"

namespace thinwire::replay {

/// A row of a file with traces of loss scalers.
struct LossScalerRow {
  std::string kind;  ///< "dynamic" for a row of dynamic.json.
  std::size_t index = 0;
  std::shared_ptr<const nlohmann::json> file;
  std::shared_ptr<const nlohmann::json> sequences;
};

/// A folder with meta.json, or a row of one with traces of loss scalers.
struct CaseFolder {
  std::string name;  ///< Relative to the folder that was searched.
  std::filesystem::path path;
  /// Why the case need not pass, from an index.json above.
  std::optional<std::string> not_required{};
  std::optional<LossScalerRow> row{};
};

enum class Outcome { kPassed, kFailed, kSkipped };

struct Result {
  Outcome outcome = Outcome::kFailed;
  std::string text;  ///< Text after the name: "(20 steps, ...)", "step 7, ...".
};

/// Returns every case at or below `folder`, by name. Throws
/// Error(kInvalidArgument) if there is none.
[[nodiscard]] std::vector<CaseFolder> find_cases(
    const std::filesystem::path& folder);

/// Replays one case on ranks that are threads.
[[nodiscard]] Result replay_local(const CaseFolder& folder,
                                  config::Semantics semantics);

/// Replays one case on the ranks of `comm`; a case of another world is skipped.
/// Collective; every rank gets the same result.
[[nodiscard]] Result replay_on(comm::Communicator& comm,
                               const CaseFolder& folder,
                               config::Semantics semantics);

}  // namespace thinwire::replay
