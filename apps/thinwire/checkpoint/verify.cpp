// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>
#include <string>

#include "apps/thinwire/checkpoint/commands.h"
#include "apps/thinwire/checkpoint/json_lines.h"
#include "checkpoint/read/locate.h"
#include "thinwire/checkpoint/inspect.h"

namespace thinwire::apps::checkpoint_tool {

namespace {

using checkpoint::Damage;
using checkpoint::Verdict;

void print(const std::string& path, const Verdict& verdict, bool json) {
  if (json) {
    OrderedJson damages = OrderedJson::array();
    for (const Damage& damage : verdict.damages)
      damages.push_back({{"file", damage.file},
                         {"begin", damage.begin},
                         {"end", damage.end},
                         {"what", damage.what}});
    return print_line({{"path", path},
                       {"good", verdict.good()},
                       {"bytes", verdict.bytes},
                       {"nonfinite", verdict.nonfinite},
                       {"damages", damages}});
  }
  for (const Damage& damage : verdict.damages)
    fmt::print("{}   {}/{}: bytes {}-{}: {}\n", kDamaged, path, damage.file,
               damage.begin, std::max(damage.end, damage.begin + 1) - 1,
               damage.what);
  if (verdict.good())
    fmt::print("good      {}: {}{}\n", path, size_text(verdict.bytes),
               verdict.nonfinite == 0
                   ? ""
                   : fmt::format(", {} values are NaN or infinite",
                                 verdict.nonfinite));
}

Verdict verdict_on(const std::string& path,
                   const checkpoint::FoundCheckpoint& found) {
  try {
    return checkpoint::verify(path);
  } catch (const std::exception&) {  // no manifest
    Verdict verdict;
    verdict.damages.push_back({"manifest.json", 0, 0, found.problem});
    return verdict;
  }
}

}  // namespace

void verify(const std::string& path, bool json) {
  const checkpoint::Located found =
      checkpoint::locate(checkpoint::posix_file_system(), path);
  std::size_t bad = 0;
  for (const auto& one : found.checkpoints) {
    if (found.is_root && !one.complete && is_leftover(one.name)) {
      if (!json)
        fmt::print("{}   {}: {}\n", kLeftover, found.path_of(one), one.problem);
      continue;
    }
    const Verdict verdict = verdict_on(found.path_of(one), one);
    print(found.path_of(one), verdict, json);
    if (!verdict.good()) ++bad;
  }
  if (bad > 0)
    throw std::runtime_error(
        fmt::format("{} of {} checkpoints {} damaged; each bad range has a "
                    "line above",
                    bad, found.checkpoints.size(), bad == 1 ? "is" : "are"));
}

}  // namespace thinwire::apps::checkpoint_tool
