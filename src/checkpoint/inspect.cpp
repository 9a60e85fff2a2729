// SPDX-License-Identifier: Apache-2.0
#include "thinwire/checkpoint/inspect.h"

#include "checkpoint/format/fields.h"
#include "checkpoint/read/locate.h"

namespace thinwire::checkpoint {

namespace {

Description describe(const std::string& path, const FoundCheckpoint& found) {
  Description d;
  d.path = path;
  d.complete = found.complete;
  d.problem = found.problem;
  if (!found.complete) return d;
  const Manifest& m = found.manifest;
  d.id = m.id;
  d.run = m.run;
  d.written = m.written;
  d.library = m.library;
  d.optimizer = m.optimizer;
  d.semantics = m.semantics;
  d.phase = m.phase;
  d.precision = m.precision;
  d.save_index = m.save_index;
  d.step = m.step;
  d.world = m.world;
  d.zero_stage = m.zero_stage;
  d.steps_behind = m.steps_behind;
  for (const SavedParameter& parameter : m.parameters)
    d.parameters += elements_of(parameter.shape).value();
  for (const SavedFile& file : m.files) d.bytes += file.bytes;
  return d;
}

}  // namespace

std::vector<Description> inspect(const std::string& path) {
  const Located found = locate(posix_file_system(), path);
  std::vector<Description> all;
  for (const FoundCheckpoint& one : found.checkpoints)
    all.push_back(describe(found.path_of(one), one));
  return all;
}

}  // namespace thinwire::checkpoint
