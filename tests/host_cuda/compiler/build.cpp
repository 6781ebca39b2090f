// From source to a shared object by g++, kept on disk by what went in.
#include "build.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <system_error>

#include "assembly.h"
#include "source.h"

extern char** environ;

namespace {

namespace fs = std::filesystem;

// Not the program's own name: modules are cached by the text that the compiler sees, and CuPy's names are random.
const std::string SOURCE_NAME = "source.cu";

std::string read_file(const fs::path& path) {
    std::ifstream stream(path, std::ios::binary);
    std::ostringstream text;
    text << stream.rdbuf();
    return text.str();
}

void write_file(const fs::path& path, const std::string& text) {
    fs::create_directories(path.parent_path());
    std::ofstream stream(path, std::ios::binary);
    stream << text;
    if (!stream.flush()) throw std::runtime_error("cannot write " + path.string());
}

// A new folder that goes with the object.
class TemporaryFolder {
public:
    TemporaryFolder() {
        std::string text = (fs::temp_directory_path() / "hostcuda-nvrtc-XXXXXX").string();
        if (mkdtemp(text.data()) == nullptr) throw std::runtime_error("cannot make a folder like " + text);
        path = text;
    }
    ~TemporaryFolder() {
        std::error_code ignored;
        fs::remove_all(path, ignored);
    }
    fs::path path;
};

struct Finished {
    int status;
    std::string errors;
};

Finished run(const std::vector<std::string>& command, const fs::path& folder) {
    const fs::path errors = folder / "errors.txt";
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&actions, 1, errors.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    posix_spawn_file_actions_adddup2(&actions, 1, 2);
    posix_spawn_file_actions_addchdir_np(&actions, folder.c_str());
    std::vector<char*> arguments;
    for (const std::string& argument : command) arguments.push_back(const_cast<char*>(argument.c_str()));
    arguments.push_back(nullptr);
    pid_t pid;
    const int failure = posix_spawnp(&pid, arguments[0], &actions, nullptr, arguments.data(), environ);
    posix_spawn_file_actions_destroy(&actions);
    if (failure != 0) throw std::runtime_error("cannot run " + command[0] + ": " + std::strerror(failure));
    int status = 0;
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR) throw std::runtime_error("cannot wait for " + command[0] + ": " + std::strerror(errno));
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read_file(errors)};
}

// Where kernel_shim.h and the runtime of kernels lie: beside this library.
const fs::path& kernel_folder() {
    static const fs::path folder = [] {
        Dl_info info;
        dladdr(reinterpret_cast<void*>(&read_file), &info);
        return fs::canonical(info.dli_fname).parent_path() / "host_cuda_kernel";
    }();
    return folder;
}

std::string environment(const char* name, const std::string& otherwise) {
    const char* value = std::getenv(name);
    return value != nullptr && *value != '\0' ? value : otherwise;
}

fs::path cache_folder() {
    const std::string home = environment("XDG_CACHE_HOME", environment("HOME", "/tmp") + "/.cache");
    return environment("HOST_CUDA_CACHE", home + "/host_cuda");
}

// FNV-1a, 128 bits.
std::string digest(const std::string& text) {
    unsigned __int128 hash = (unsigned __int128)0x6c62272e07bb0142 << 64 | 0x62b821756295c58d;
    const unsigned __int128 prime = (unsigned __int128)1 << 88 | 0x13b;
    for (unsigned char c : text) hash = (hash ^ c) * prime;
    char digits[33];
    std::snprintf(digits, sizeof digits, "%016llx%016llx", (unsigned long long)(hash >> 64), (unsigned long long)hash);
    return digits;
}

std::string compiler() { return environment("HOST_CUDA_CXX", "g++"); }

std::vector<std::string> compiler_options(const Options& options) {
    return {compiler(), "-std=c++" + options.standard, "-O1", "-fPIC", "-w", "-ffp-contract=off",
            "-fno-strict-aliasing",
            "-fwrapv", "-fno-exceptions", "-fno-math-errno", "-fno-semantic-interposition", "-fno-extern-tls-init",
            "-fno-asynchronous-unwind-tables", "-fno-stack-protector", "-fdiagnostics-color=never"};
}

std::vector<std::string> preprocessor_command(const Options& options, const fs::path& headers) {
    std::vector<std::string> command = {compiler(), "-std=c++" + options.standard, "-E", "-x", "c++", "-nostdinc", "-w",
                                        "-U__GNUC__", "-fdiagnostics-color=never"};
    const auto define = [&](const std::string& name, int value) {
        command.push_back("-D" + name + "=" + std::to_string(value));
    };
    define("__CUDA_ARCH__", options.arch * 10);
    define("__CUDACC_VER_MAJOR__", VERSION_MAJOR);
    define("__CUDACC_VER_MINOR__", VERSION_MINOR);
    define("__CUDACC_VER_BUILD__", 0);
    define("HOSTCUDA_FTZ", options.flushes_subnormals);
    command.push_back("-I" + (kernel_folder() / "include").string());
    command.push_back("-I" + headers.string());
    // First, so that what -include names sees it.
    command.push_back("-include");
    command.push_back((kernel_folder() / "kernel_shim.h").string());
    command.insert(command.end(), options.preprocessor.begin(), options.preprocessor.end());
    return command;
}

// Written whole or not at all; a cache that cannot be written is none.
void store(const fs::path& path, const std::string& image) {
    const fs::path partial = path.string() + "." + std::to_string(getpid()) + "." + std::to_string(gettid());
    std::error_code failure;
    try {
        write_file(partial, image);
        fs::rename(partial, path);
    } catch (const std::exception&) {
        fs::remove(partial, failure);
    }
}

// Throws std::runtime_error with the compiler's messages.
void checked(const std::vector<std::string>& command, const fs::path& folder, std::string& log) {
    const Finished finished = run(command, folder);
    log += finished.errors;
    if (finished.status != 0) throw std::runtime_error("");
}

void compile(const std::string& text, int num_entries, const Options& options, const fs::path& folder, Build& result) {
    write_file(folder / "program.ii", text);
    std::vector<std::string> command = compiler_options(options);
    command.insert(command.end(), {"-S", "program.ii", "-o", "program.s"});
    checked(command, folder, result.log);
    const std::string assembly = read_file(folder / "program.s");
    write_file(folder / "program.s", finish(assembly, num_entries, options.flushes_subnormals));
    checked({compiler(), "-shared", "program.s", (kernel_folder() / "runtime.o").string(), "-o", "program.so",
             "-Wl,-Bsymbolic,-z,defs,--build-id=none"},
            folder, result.log);
    // CuPy drops the last byte of an image.
    result.image = read_file(folder / "program.so") + std::string(16, '\0');
}

}  // namespace

std::string build_version() {
    static const std::string version = digest(read_file(kernel_folder() / "version.txt") + compiler());
    return version;
}

Build build(const Program& program, const Options& options) {
    Build result;
    try {
        const TemporaryFolder temporary;
        const fs::path& folder = temporary.path;
        write_file(folder / SOURCE_NAME, program.source);
        for (const auto& [name, text] : program.headers) write_file(folder / "headers" / name, text);
        std::vector<std::string> command = preprocessor_command(options, folder / "headers");
        command.insert(command.end(), {SOURCE_NAME, "-o", "preprocessed.ii"});
        checked(command, folder, result.log);

        const KernelSource source = rewrite(read_file(folder / "preprocessed.ii"));
        std::string key = build_version();
        for (const std::string& option : compiler_options(options)) key += option + " ";
        const fs::path cached =
            cache_folder() / digest(key + std::to_string(options.flushes_subnormals) + source.text);
        result.image = read_file(cached);
        if (result.image.empty()) {
            compile(source.text, source.num_entries, options, folder, result);
            store(cached, result.image);
        }
        result.is_done = true;
    } catch (const std::runtime_error& error) {
        if (*error.what() != '\0') result.log += std::string(error.what()) + "\n";
    }
    for (size_t at = 0; (at = result.log.find(SOURCE_NAME, at)) != std::string::npos; at += program.name.size())
        result.log.replace(at, SOURCE_NAME.size(), program.name);
    return result;
}
