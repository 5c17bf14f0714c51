// foveal: the command line. Results on standard output, everything else on standard error.
#include <csignal>
#include <cstdio>
#include <initializer_list>
#include <new>
#include <stdexcept>

#include "base/check.h"
#include "command.h"
#include "cuda/arch.h"
#include "cuda/jit/nvrtc.h"
#include "foveal/version.h"
#include "validators.h"

namespace foveal::cli {
namespace {

/// An empty text would count as an option that was not given: a variable of a script that is not set would leave out a mask.
void refuse_empty_texts(CLI::App& app) {
  for (CLI::Option* option : app.get_options())
    if (option->get_type_size() != 0) option->check(not_empty());
  for (CLI::App* subcommand : app.get_subcommands({})) refuse_empty_texts(*subcommand);
}

/// Of the innermost command that was named.
void complain_of_words(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App* named = &app;
  std::string path = app.get_name();
  for (; !named->get_subcommands().empty(); path += " " + named->get_name()) named = named->get_subcommands().front();
  const std::vector<std::string> words = named->remaining();
  if (named->get_require_subcommand_min() > 0 && !words.empty())
    complain("'" + words.front() + "' is no " + (words.front().starts_with('-') ? "option" : "subcommand") + "; `" + path +
             " --help` lists them");
  else
    app.exit(error);
}

int run(int argc, char** argv) {
  CLI::App app("Exact fused attention, forward and backward, with scores and masks that you program and train.", "foveal");
  app.require_subcommand(1);
  app.set_version_flag("--version", "foveal " FOVEAL_VERSION);
  app.footer(
      "Exit codes: 0 done, 1 a check failed, 2 wrong usage or input, 3 nothing on this machine can do it, 4 a device or system error, "
      "5 too large for the memory of this machine.");
  add_targets(app);
  add_check(app);
  add_bench(app);
  add_explain(app);
  add_run(app);
  add_cache(app);
  add_emit(app);
  add_support(app);
  add_tune(app);
  refuse_empty_texts(app);
  try {
    app.parse(argc, argv);
    return exit_ok;
  } catch (const CLI::Success& asked_for_help) {
    return app.exit(asked_for_help);
  } catch (const CLI::ParseError& error) {
    complain_of_words(app, error);
    return exit_usage;
  } catch (const Exit& end) {
    return end.code;
  } catch (const std::exception& error) {
    return complain(error);
  }
}

}  // namespace

ExitCode exit_code(ErrorCode code) {
  switch (code) {
    case ErrorCode::invalid_argument:
      return exit_usage;
    case ErrorCode::unsupported:
      return exit_unsupported;
    default:
      return exit_failure;
  }
}

namespace {

void say(std::initializer_list<const char*> pieces) noexcept {
  for (const char* piece : pieces) std::fputs(piece, stderr);  // fmt::print() throws where this fails
}

bool is_lack_of_memory(const std::exception& error) {
  return dynamic_cast<const std::bad_alloc*>(&error) != nullptr || dynamic_cast<const std::length_error*>(&error) != nullptr;
}

}  // namespace

void complain(const std::string& message) noexcept { say({"foveal: ", message.c_str(), "\n"}); }

ExitCode complain(const std::exception& error) noexcept {
  if (is_lack_of_memory(error)) {
    say({"foveal: too little memory: ", error.what(), "\n"});
    return exit_no_memory;
  }
  const auto* const coded = dynamic_cast<const Error*>(&error);
  if (coded == nullptr) {
    say({"foveal: ", error.what(), "\n"});
    return exit_failure;
  }
  const bool no_compiler = coded->code() == ErrorCode::device && error.what() == cuda::jit::nvrtc_unavailable();
  const ErrorCode code = no_compiler ? ErrorCode::unsupported : coded->code();  // what is not installed is no error of a device
  say({"foveal: ", to_string(code), ": ", error.what(), "\n"});
  return exit_code(code);
}

void add_plan_options(CLI::App& command, PlanOptions& options) {
  command.add_option("--backend", options.backend, "reference, cpu or cuda; default: the first that can");
  command.add_option("--target", options.target,
                     base::join("scalar, avx2, avx512, avx512bf16, amx, neon, neonbf16, neonfhm, ", cuda::target_names(", "),
                                ", as foveal targets lists them; default: the best here"));
  command.add_option("--threads", options.threads, "CPU threads; default: all")->check(whole_number(0, 4096));
}

}  // namespace foveal::cli

int main(int argc, char** argv) {
  std::signal(SIGXFSZ, SIG_IGN);  // a file that may not grow is an error like a full disk, and leaves nothing behind
  const int code = foveal::cli::run(argc, argv);
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
  std::perror("foveal: standard output");
  return foveal::cli::exit_failure;
}
