// SPDX-License-Identifier: Apache-2.0
#include "apps/thinwire/add_commands.h"

#include <functional>
#include <memory>
#include <string>

#include "apps/thinwire/checkpoint/commands.h"

namespace thinwire::apps {

namespace {

using namespace checkpoint_tool;

struct CheckpointFlags {
  std::string path;
  bool json = false;
  ExportFlags export_to;
};

// NAME PATH [--json]
CLI::App* add(CLI::App& parent, const std::string& name,
              const std::string& what,
              const std::shared_ptr<CheckpointFlags>& flags,
              const std::string& argument) {
  CLI::App* const command = parent.add_subcommand(name, what);
  command
      ->add_option(argument, flags->path,
                   argument == "ROOT" ? "a directory of checkpoints"
                   : argument == "DIR"
                       ? "a checkpoint, or a directory for its newest one"
                       : "a checkpoint, or a directory for all in it")
      ->required();
  command->add_flag("--json", flags->json, "print JSON, for programs");
  return command;
}

void add_export(CLI::App& parent,
                const std::shared_ptr<CheckpointFlags>& flags) {
  CLI::App* const command = add(
      parent, "export",
      "Write the weights as Hugging Face does, in any precision", flags, "DIR");
  command
      ->add_option("--out", flags->export_to.out,
                   "the directory to write to; nothing in it is replaced")
      ->required();
  command
      ->add_option("--dtype", flags->export_to.dtype,
                   "fp32 (from the masters, if there are any), bf16 or fp16; "
                   "default: the model's own")
      ->check(CLI::IsMember({"fp32", "bf16", "fp16"}));
  command->add_flag(
      "--states", flags->export_to.states,
      "also write optimizer.safetensors, with exp_avg/NAME and the like");
  command->callback(
      [flags] { export_to(flags->path, flags->export_to, flags->json); });
}

// The command that versions before 0.16 had.
void reject_diff(CLI::App& parent) {
  CLI::App* const command = parent.add_subcommand("diff", "")->group("");
  command->set_help_flag();
  command->prefix_command();
  command->callback([] {
    throw CLI::ParseError(
        "checkpoint diff no longer exists: export both checkpoints with "
        "'thinwire checkpoint export DIR --out D --states' and compare the "
        "tensors of D/*.safetensors by name",
        CLI::ExitCodes::InvalidError);
  });
}

}  // namespace

void add_checkpoint(CLI::App& app) {
  CLI::App* const group =
      app.add_subcommand("checkpoint", "Show and verify checkpoints");
  group->require_subcommand(1);
  const auto flags = std::make_shared<CheckpointFlags>();
  add(*group, "ls", "List the checkpoints in a directory", flags, "ROOT")
      ->callback([flags] { list(flags->path, flags->json); });
  add(*group, "show", "Show the content of a checkpoint", flags, "DIR")
      ->callback([flags] { show(flags->path, flags->json); });
  add(*group, "verify",
      "Read every byte and compare it with the hashes; exit code 1 if one is "
      "wrong",
      flags, "DIR|ROOT")
      ->callback([flags] { verify(flags->path, flags->json); });
  add_export(*group, flags);
  reject_diff(*group);
}

}  // namespace thinwire::apps
