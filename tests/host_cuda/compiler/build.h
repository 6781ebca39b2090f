// From a program and its options to a module: g++ is run, and results are kept on disk.
#pragma once

#include <string>
#include <utility>
#include <vector>

struct Program {
    std::string source, name;
    std::vector<std::pair<std::string, std::string>> headers;  // name, text
};

struct Options {
    std::string standard = "17";
    int arch = 75;
    bool is_virtual_arch = false;  // compute_90 and not sm_90: PTX only
    bool flushes_subnormals = false;
    std::vector<std::string> preprocessor;  // -I, -D, -U and -include, as g++ takes them
};

struct Build {
    bool is_done = false;
    std::string log;
    std::string image;  // the shared object
};

// Throws std::invalid_argument, with NVRTC's text, at an option that NVRTC does not know or that is not supported here.
Options parse_options(const std::vector<std::string>& given);

Build build(const Program& program, const Options& options);

// Changes with everything that images depend on besides programs and options.
std::string build_version();

extern const std::vector<int> SUPPORTED_ARCHS;
constexpr int VERSION_MAJOR = 13, VERSION_MINOR = 2;
