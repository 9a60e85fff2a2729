// SPDX-License-Identifier: Apache-2.0
#include "apps/thinwire/replay/replay.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>

#include "apps/thinwire/replay/families.h"
#include "thinwire/comm/agreement.h"
#include "thinwire/comm/local.h"
#include "thinwire/core/error.h"

namespace thinwire::replay {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

// Returns the reason that the nearest index.json above gives for this case, if
// any.
std::optional<std::string> why_not_required(const fs::path& folder) {
  const fs::path full = fs::absolute(folder).lexically_normal();
  for (fs::path above = full.parent_path(); above != above.parent_path();
       above = above.parent_path()) {
    std::ifstream file(above / "index.json");
    if (!file) continue;
    const json index = json::parse(file, nullptr, false);
    const std::string key = full.lexically_relative(above).generic_string();
    if (!index.is_object() || !index.contains(key)) return std::nullopt;
    if (index[key].value("required", true)) return std::nullopt;
    return fmt::format("{} marks it \"required\": false",
                       (above / "index.json").filename().string());
  }
  return std::nullopt;
}

bool is_case(const fs::path& folder) {
  return fs::is_regular_file(folder / "meta.json") ||
         holds_loss_scalers(folder);
}

// Returns the function for a case. Throws Unsupported if there is none.
Family* family_of(const RecordedCase& recorded) {
  const json& meta = recorded.meta();
  if (meta.contains("calls") && meta.contains("ops"))
    return replay_compressed_all_reduce;
  if (meta.value("algo_zero", false)) return replay_zero;
  const std::string algo = meta.value("algo", "");
  if (algo == "OnebitAdam") return replay_onebit_adam;
  if (algo == "OnebitLamb") return replay_onebit_lamb;
  if (algo == "ZeroOneAdam") return replay_zero_one_adam;
  throw Unsupported(fmt::format("meta.algo \"{}\"", algo));
}

// Returns the sizes of the tensors in flat order.
std::vector<std::size_t> tensor_sizes(const RecordedCase& recorded) {
  std::vector<std::size_t> sizes;
  if (recorded.meta().contains("tensors"))
    for (const json& tensor : recorded.meta().at("tensors"))
      sizes.push_back(tensor.value("n", std::size_t{0}));
  return sizes;
}

// One rank's result, in a form that ranks can exchange.
struct RankResult {
  std::size_t step = 0;
  std::string difference;  // empty if there is none
  std::string unsupported;
  std::size_t bytes = 0;
  std::size_t arrays = 0;
};

RankResult run_rank(const RecordedCase& recorded, comm::Communicator& comm,
                    config::Semantics semantics) {
  RankResult result;
  Comparison comparison(comm.rank(), tensor_sizes(recorded));
  try {
    family_of(recorded)(recorded, comm, semantics, comparison);
  } catch (const Unsupported& why) {
    result.unsupported = why.what();
    return result;
  }
  result.step = comparison.difference_step();
  result.difference = comparison.difference().value_or("");
  result.bytes = comparison.compared_bytes();
  result.arrays = comparison.covered().size();
  for (const std::string& file : recorded.outputs())
    if (!comparison.covered().contains(file))
      result.unsupported = fmt::format("array {} is not compared", file);
  return result;
}

Result combine(const RecordedCase& recorded,
               const std::vector<RankResult>& ranks) {
  const RankResult* first = nullptr;
  std::size_t bytes = 0;
  for (const RankResult& rank : ranks) {
    if (!rank.unsupported.empty())
      return {Outcome::kFailed, "unsupported: " + rank.unsupported};
    bytes += rank.bytes;
    if (!rank.difference.empty() &&
        (first == nullptr || rank.step < first->step))
      first = &rank;
  }
  if (first != nullptr) return {Outcome::kFailed, first->difference};
  const json& meta = recorded.meta();
  const bool calls = meta.contains("calls");
  return {Outcome::kPassed,
          fmt::format("({} {}, {} ranks, {} arrays, {} KB compared)",
                      meta.at(calls ? "calls" : "steps").get<std::size_t>(),
                      calls ? "calls" : "steps", ranks.size(),
                      ranks.front().arrays, (bytes + 1023) / 1024)};
}

// Calls body. If it cannot read its input, the case fails, not the program.
Result guarded(const CaseFolder& folder,
               const std::function<Result(const RecordedCase&)>& body) {
  if (folder.not_required) return {Outcome::kSkipped, *folder.not_required};
  try {
    // A loss scaler has no ranks, so there is nothing to exchange.
    if (folder.row) return replay_loss_scaler(folder);
    return body(RecordedCase(folder.path));
  } catch (const Unsupported& why) {
    return {Outcome::kFailed, fmt::format("unsupported: {}", why.what())};
  } catch (const BrokenCase& why) {
    return {Outcome::kFailed, why.what()};
  } catch (const json::exception& why) {
    return {Outcome::kFailed, fmt::format("meta.json: {}", why.what())};
  }
}

}  // namespace

std::vector<CaseFolder> find_cases(const fs::path& folder) {
  std::vector<fs::path> found;
  if (is_case(folder)) {
    found.push_back(folder);
  } else if (fs::is_directory(folder)) {
    for (const auto& entry : fs::recursive_directory_iterator(folder))
      if (entry.is_directory() && is_case(entry.path()))
        found.push_back(entry.path());
  }
  if (found.empty())
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("DIR must be or hold a folder with meta.json, got "
                            "'{}'",
                            folder.string()));
  std::sort(found.begin(), found.end());
  std::vector<CaseFolder> cases;
  for (const fs::path& path : found) {
    const fs::path full = fs::absolute(path).lexically_normal();
    std::string name = path.lexically_relative(folder).generic_string();
    if (name == "." || name.empty())
      name =
          (full.has_filename() ? full : full.parent_path()).filename().string();
    const CaseFolder found_case{name, path, why_not_required(path)};
    if (!holds_loss_scalers(path)) {
      cases.push_back(found_case);
      continue;
    }
    for (CaseFolder& row : loss_scaler_cases(found_case))
      cases.push_back(std::move(row));
  }
  return cases;
}

Result replay_local(const CaseFolder& folder, config::Semantics semantics) {
  return guarded(folder, [&](const RecordedCase& recorded) {
    std::vector<RankResult> results(static_cast<std::size_t>(recorded.world()));
    comm::run_local_ranks(recorded.world(), [&](comm::Communicator& comm) {
      results[static_cast<std::size_t>(comm.rank())] =
          run_rank(recorded, comm, semantics);
    });
    return combine(recorded, results);
  });
}

Result replay_on(comm::Communicator& comm, const CaseFolder& folder,
                 config::Semantics semantics) {
  return guarded(folder, [&](const RecordedCase& recorded) -> Result {
    if (recorded.world() != comm.size())
      return {Outcome::kSkipped,
              fmt::format("recorded on {} ranks, this run has {}",
                          recorded.world(), comm.size())};
    const RankResult own = run_rank(recorded, comm, semantics);
    const json packed = {own.step, own.difference, own.unsupported, own.bytes,
                         own.arrays};
    std::vector<RankResult> results;
    for (const std::string& text : comm::gather_texts(comm, packed.dump())) {
      const json rank = json::parse(text);
      results.push_back({rank[0], rank[1], rank[2], rank[3], rank[4]});
    }
    return combine(recorded, results);
  });
}

}  // namespace thinwire::replay
