# Installs Riffle @VERSION@ for one user, on Windows.
#
# The script fetches the archive, compares its SHA-256 sum, unpacks it to %LOCALAPPDATA%\Programs\Riffle, and puts that folder on the
# user's Path. It runs in Windows PowerShell 5.1 and in PowerShell 7. Leaves with status 1 after one line where something is wrong.
#
# Usage: powershell -ExecutionPolicy Bypass -File install.ps1 [-Folder FOLDER] [-Url URL]
param(
    [string]$Folder = "$env:LOCALAPPDATA\Programs\Riffle",
    [string]$Url = "@URL@"
)
$ErrorActionPreference = "Stop"
# Windows PowerShell draws progress so often that a download takes ten times as long.
$ProgressPreference = "SilentlyContinue"

$version = "@VERSION@"
$name = "riffle-$version-x86_64-pc-windows-gnu"
$wanted = "@SHA256_WINDOWS@"

function Stop-Install([string]$message) {
    [Console]::Error.WriteLine("install.ps1: $message")
    exit 1
}

# Windows on Arm runs programs for x86-64 since Windows 11.
$machine = $env:PROCESSOR_ARCHITECTURE
if ($machine -eq "x86" -and $env:PROCESSOR_ARCHITEW6432) { $machine = $env:PROCESSOR_ARCHITEW6432 }
if ($machine -ne "AMD64" -and $machine -ne "ARM64") {
    Stop-Install "there is no archive for processors of the kind $machine; there is one for AMD64"
}

$work = Join-Path ([IO.Path]::GetTempPath()) ([IO.Path]::GetRandomFileName())
New-Item -ItemType Directory -Path $work | Out-Null
try {
    $archive = Join-Path $work "$name.zip"
    try {
        # PowerShell 5.1 of older systems does not offer TLS 1.2 by itself.
        [Net.ServicePointManager]::SecurityProtocol = [Net.ServicePointManager]::SecurityProtocol -bor [Net.SecurityProtocolType]::Tls12
        Invoke-WebRequest -Uri "$Url/$name.zip" -OutFile $archive -UseBasicParsing
    } catch {
        Stop-Install "cannot fetch $Url/$name.zip: $($_.Exception.Message)"
    }
    $found = (Get-FileHash -Algorithm SHA256 -Path $archive).Hash.ToLowerInvariant()
    if ($found -ne $wanted) {
        Stop-Install "$name.zip has the SHA-256 sum $found in place of ${wanted}: nothing was installed"
    }
    try {
        Expand-Archive -Path $archive -DestinationPath $work
    } catch {
        Stop-Install "cannot unpack $name.zip: $($_.Exception.Message)"
    }
    & "$work\$name\riffle.exe" --version | Out-Null
    if ($LASTEXITCODE -ne 0) {
        Stop-Install "the program of $name does not start on this system: nothing was installed"
    }
    try {
        if (Test-Path $Folder) { Remove-Item -Recurse -Force $Folder }
        New-Item -ItemType Directory -Force -Path (Split-Path -Parent $Folder) | Out-Null
        Move-Item -Path "$work\$name" -Destination $Folder
    } catch {
        Stop-Install "cannot replace ${Folder}: $($_.Exception.Message). Does a riffle.exe still run?"
    }
} finally {
    Remove-Item -Recurse -Force -ErrorAction SilentlyContinue $work
}

$path = [Environment]::GetEnvironmentVariable("Path", "User")
if (-not $path) { $path = "" }
if (($path -split ";") -notcontains $Folder) {
    [Environment]::SetEnvironmentVariable("Path", ($path.TrimEnd(";") + ";" + $Folder).TrimStart(";"), "User")
    Write-Output "$Folder is on your Path in terminals that you open from now on."
}
Write-Output "Riffle $version is installed: $Folder\riffle.exe"
Write-Output "Completions for PowerShell are in $Folder\completions. To remove all, delete $Folder and take it from your Path."
